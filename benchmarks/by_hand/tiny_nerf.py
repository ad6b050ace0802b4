"""Tiny NeRF: learn a small scene of coloured spheres from posed pictures.

Follows the well known nerf-pytorch code (positional encoding, coarse and fine
network, hierarchical sampling), but the scene is rendered analytically so that
nothing has to be downloaded.
"""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--N_rand", type=int, default=256, help="rays per gradient step")
parser.add_argument("--N_samples", type=int, default=32, help="coarse samples per ray")
parser.add_argument("--N_importance", type=int, default=32, help="additional fine samples per ray")
parser.add_argument("--netdepth", type=int, default=6)
parser.add_argument("--netwidth", type=int, default=128)
parser.add_argument("--multires", type=int, default=6, help="log2 of max freq for 3D location")
parser.add_argument("--multires_views", type=int, default=4, help="log2 of max freq for 2D direction")
parser.add_argument("--netchunk", type=int, default=1024 * 4, help="points sent through the network at once")
parser.add_argument("--chunk", type=int, default=1024, help="rays rendered at once")
parser.add_argument("--lrate", type=float, default=1e-3)
parser.add_argument("--lrate_decay", type=float, default=1.0, help="decay by 0.1 every N thousand steps")
parser.add_argument("--i_print", type=int, default=10)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

np.random.seed(args.seed)
torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# Misc
img2mse = lambda x, y: torch.mean((x - y) ** 2)
mse2psnr = lambda x: -10. * torch.log(x) / torch.log(torch.Tensor([10.]).to(device))


# ----------------------------------------------------------------------------
# Scene
# ----------------------------------------------------------------------------
SPHERES = [  # centre, radius, colour
    ((0.0, 0.0, 0.0), 0.7, (0.9, 0.2, 0.2)),
    ((0.9, 0.3, 0.2), 0.4, (0.2, 0.8, 0.3)),
    ((-0.7, 0.6, -0.3), 0.45, (0.2, 0.3, 0.9)),
    ((0.1, -0.9, 0.5), 0.35, (0.9, 0.8, 0.2)),
    ((-0.3, -0.4, 0.9), 0.25, (0.7, 0.3, 0.8)),
]


def pose_spherical(theta, phi, radius):
    theta, phi = theta / 180. * np.pi, phi / 180. * np.pi
    trans_t = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, radius], [0, 0, 0, 1]], dtype=np.float32)
    rot_phi = np.array([[1, 0, 0, 0], [0, np.cos(phi), -np.sin(phi), 0],
                        [0, np.sin(phi), np.cos(phi), 0], [0, 0, 0, 1]], dtype=np.float32)
    rot_theta = np.array([[np.cos(theta), 0, -np.sin(theta), 0], [0, 1, 0, 0],
                          [np.sin(theta), 0, np.cos(theta), 0], [0, 0, 0, 1]], dtype=np.float32)
    flip = np.array([[-1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]], dtype=np.float32)
    return flip @ rot_theta @ rot_phi @ trans_t


def get_rays_np(H, W, focal, c2w):
    i, j = np.meshgrid(np.arange(W, dtype=np.float32), np.arange(H, dtype=np.float32), indexing="xy")
    dirs = np.stack([(i - W * .5) / focal, -(j - H * .5) / focal, -np.ones_like(i)], -1)
    rays_d = np.sum(dirs[..., np.newaxis, :] * c2w[:3, :3], -1)
    rays_o = np.broadcast_to(c2w[:3, -1], np.shape(rays_d))
    return rays_o, rays_d


def render_scene(H, W, focal, c2w):
    """Spheres with Lambert shading and a highlight in front of white."""
    rays_o, rays_d = get_rays_np(H, W, focal, c2w)
    d = rays_d / np.linalg.norm(rays_d, axis=-1, keepdims=True)
    img = np.ones((H, W, 3), dtype=np.float32)
    depth = np.full((H, W), np.inf)
    light = np.array([0.5, 0.6, 0.8])
    light = light / np.linalg.norm(light)
    for centre, radius, colour in SPHERES:
        oc = rays_o - np.array(centre)
        b = np.sum(oc * d, -1)
        disc = b ** 2 - (np.sum(oc * oc, -1) - radius ** 2)
        t = -b - np.sqrt(np.maximum(disc, 0))
        hit = (disc > 0) & (t < depth)
        n = (oc + t[..., None] * d) / radius
        lambert = np.clip(np.sum(n * light, -1), 0, 1)
        refl = d - 2 * np.sum(d * n, -1, keepdims=True) * n
        spec = np.clip(np.sum(refl * light, -1), 0, 1) ** 16
        shade = np.array(colour) * (0.35 + 0.65 * lambert[..., None]) + 0.3 * spec[..., None]
        img[hit] = np.clip(shade, 0, 1)[hit]
        depth[hit] = t[hit]
    return img


def load_scene(n_images=40, H=64, W=64):
    focal = 0.5 * W / np.tan(0.5 * 0.7)
    poses = [pose_spherical(np.random.uniform(-180, 180), np.random.uniform(-80, -10), 4.) for _ in range(n_images)]
    images = [render_scene(H, W, focal, p) for p in poses]
    return np.stack(images).astype(np.float32), np.stack(poses).astype(np.float32), (H, W, focal)


# ----------------------------------------------------------------------------
# Positional encoding
# ----------------------------------------------------------------------------
class Embedder:
    def __init__(self, **kwargs):
        self.kwargs = kwargs
        self.create_embedding_fn()

    def create_embedding_fn(self):
        embed_fns = []
        d = self.kwargs["input_dims"]
        out_dim = 0
        if self.kwargs["include_input"]:
            embed_fns.append(lambda x: x)
            out_dim += d

        freq_bands = 2. ** torch.linspace(0., self.kwargs["max_freq_log2"], steps=self.kwargs["num_freqs"])
        for freq in freq_bands:
            for p_fn in self.kwargs["periodic_fns"]:
                embed_fns.append(lambda x, p_fn=p_fn, freq=freq: p_fn(x * freq))
                out_dim += d

        self.embed_fns = embed_fns
        self.out_dim = out_dim

    def embed(self, inputs):
        return torch.cat([fn(inputs) for fn in self.embed_fns], -1)


def get_embedder(multires):
    embedder_obj = Embedder(include_input=True, input_dims=3, max_freq_log2=multires - 1, num_freqs=multires,
                            periodic_fns=[torch.sin, torch.cos])
    return lambda x: embedder_obj.embed(x), embedder_obj.out_dim


# ----------------------------------------------------------------------------
# Model
# ----------------------------------------------------------------------------
class NeRF(nn.Module):
    def __init__(self, D=8, W=256, input_ch=3, input_ch_views=3, skips=[3]):
        super(NeRF, self).__init__()
        self.D = D
        self.W = W
        self.input_ch = input_ch
        self.input_ch_views = input_ch_views
        self.skips = skips
        self.pts_linears = nn.ModuleList(
            [nn.Linear(input_ch, W)] +
            [nn.Linear(W, W) if i not in self.skips else nn.Linear(W + input_ch, W) for i in range(D - 1)])
        self.views_linears = nn.ModuleList([nn.Linear(input_ch_views + W, W // 2)])
        self.feature_linear = nn.Linear(W, W)
        self.alpha_linear = nn.Linear(W, 1)
        self.rgb_linear = nn.Linear(W // 2, 3)

    def forward(self, x):
        input_pts, input_views = torch.split(x, [self.input_ch, self.input_ch_views], dim=-1)
        h = input_pts
        for i, l in enumerate(self.pts_linears):
            h = self.pts_linears[i](h)
            h = F.relu(h)
            if i in self.skips:
                h = torch.cat([input_pts, h], -1)

        alpha = self.alpha_linear(h)
        feature = self.feature_linear(h)
        h = torch.cat([feature, input_views], -1)
        for i, l in enumerate(self.views_linears):
            h = self.views_linears[i](h)
            h = F.relu(h)
        rgb = self.rgb_linear(h)
        return torch.cat([rgb, alpha], -1)


def batchify(fn, chunk):
    """Constructs a version of 'fn' that applies to smaller batches."""
    if chunk is None:
        return fn

    def ret(inputs):
        return torch.cat([fn(inputs[i:i + chunk]) for i in range(0, inputs.shape[0], chunk)], 0)
    return ret


def run_network(inputs, viewdirs, fn, embed_fn, embeddirs_fn, netchunk=1024 * 64):
    """Prepares inputs and applies network 'fn'."""
    inputs_flat = torch.reshape(inputs, [-1, inputs.shape[-1]])
    embedded = embed_fn(inputs_flat)

    input_dirs = viewdirs[:, None].expand(inputs.shape)
    input_dirs_flat = torch.reshape(input_dirs, [-1, input_dirs.shape[-1]])
    embedded_dirs = embeddirs_fn(input_dirs_flat)
    embedded = torch.cat([embedded, embedded_dirs], -1)

    outputs_flat = batchify(fn, netchunk)(embedded)
    outputs = torch.reshape(outputs_flat, list(inputs.shape[:-1]) + [outputs_flat.shape[-1]])
    return outputs


# ----------------------------------------------------------------------------
# Volume rendering
# ----------------------------------------------------------------------------
def get_rays(H, W, focal, c2w):
    i, j = torch.meshgrid(torch.linspace(0, W - 1, W), torch.linspace(0, H - 1, H), indexing="ij")
    i = i.t()
    j = j.t()
    dirs = torch.stack([(i - W * .5) / focal, -(j - H * .5) / focal, -torch.ones_like(i)], -1).to(device)
    # Rotate ray directions from camera frame to the world frame
    rays_d = torch.sum(dirs[..., np.newaxis, :] * c2w[:3, :3], -1)
    rays_o = c2w[:3, -1].expand(rays_d.shape)
    return rays_o, rays_d


def sample_pdf(bins, weights, N_samples, det=False):
    # Get pdf
    weights = weights + 1e-5  # prevent nans
    pdf = weights / torch.sum(weights, -1, keepdim=True)
    cdf = torch.cumsum(pdf, -1)
    cdf = torch.cat([torch.zeros_like(cdf[..., :1]), cdf], -1)  # (batch, len(bins))

    # Take uniform samples
    if det:
        u = torch.linspace(0., 1., steps=N_samples, device=device)
        u = u.expand(list(cdf.shape[:-1]) + [N_samples])
    else:
        u = torch.rand(list(cdf.shape[:-1]) + [N_samples], device=device)

    # Invert CDF
    u = u.contiguous()
    inds = torch.searchsorted(cdf, u, right=True)
    below = torch.max(torch.zeros_like(inds - 1), inds - 1)
    above = torch.min((cdf.shape[-1] - 1) * torch.ones_like(inds), inds)
    inds_g = torch.stack([below, above], -1)  # (batch, N_samples, 2)

    matched_shape = [inds_g.shape[0], inds_g.shape[1], cdf.shape[-1]]
    cdf_g = torch.gather(cdf.unsqueeze(1).expand(matched_shape), 2, inds_g)
    bins_g = torch.gather(bins.unsqueeze(1).expand(matched_shape), 2, inds_g)

    denom = (cdf_g[..., 1] - cdf_g[..., 0])
    denom = torch.where(denom < 1e-5, torch.ones_like(denom), denom)
    t = (u - cdf_g[..., 0]) / denom
    samples = bins_g[..., 0] + t * (bins_g[..., 1] - bins_g[..., 0])
    return samples


def raw2outputs(raw, z_vals, rays_d, white_bkgd=True):
    """Transforms model's predictions to semantically meaningful values."""
    raw2alpha = lambda raw, dists, act_fn=F.relu: 1. - torch.exp(-act_fn(raw) * dists)

    dists = z_vals[..., 1:] - z_vals[..., :-1]
    dists = torch.cat([dists, torch.Tensor([1e10]).to(device).expand(dists[..., :1].shape)], -1)
    dists = dists * torch.norm(rays_d[..., None, :], dim=-1)

    rgb = torch.sigmoid(raw[..., :3])  # [N_rays, N_samples, 3]
    alpha = raw2alpha(raw[..., 3], dists)  # [N_rays, N_samples]
    weights = alpha * torch.cumprod(
        torch.cat([torch.ones((alpha.shape[0], 1), device=device), 1. - alpha + 1e-10], -1), -1)[:, :-1]
    rgb_map = torch.sum(weights[..., None] * rgb, -2)

    depth_map = torch.sum(weights * z_vals, -1)
    acc_map = torch.sum(weights, -1)
    if white_bkgd:
        rgb_map = rgb_map + (1. - acc_map[..., None])
    return rgb_map, acc_map, weights, depth_map


def render_rays(rays_o, rays_d, near, far, model, model_fine, network_query_fn, N_samples, N_importance, perturb=1.):
    N_rays = rays_o.shape[0]
    viewdirs = rays_d / torch.norm(rays_d, dim=-1, keepdim=True)

    t_vals = torch.linspace(0., 1., steps=N_samples, device=device)
    z_vals = near * (1. - t_vals) + far * t_vals
    z_vals = z_vals.expand([N_rays, N_samples])

    if perturb > 0.:
        # get intervals between samples
        mids = .5 * (z_vals[..., 1:] + z_vals[..., :-1])
        upper = torch.cat([mids, z_vals[..., -1:]], -1)
        lower = torch.cat([z_vals[..., :1], mids], -1)
        # stratified samples in those intervals
        t_rand = torch.rand(z_vals.shape, device=device)
        z_vals = lower + (upper - lower) * t_rand

    pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., :, None]  # [N_rays, N_samples, 3]
    raw = network_query_fn(pts, viewdirs, model)
    rgb_map_0, acc_map_0, weights, depth_map_0 = raw2outputs(raw, z_vals, rays_d)

    z_vals_mid = .5 * (z_vals[..., 1:] + z_vals[..., :-1])
    z_samples = sample_pdf(z_vals_mid, weights[..., 1:-1], N_importance, det=(perturb == 0.))
    z_samples = z_samples.detach()

    z_vals, _ = torch.sort(torch.cat([z_vals, z_samples], -1), -1)
    pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., :, None]
    raw = network_query_fn(pts, viewdirs, model_fine)
    rgb_map, acc_map, weights, depth_map = raw2outputs(raw, z_vals, rays_d)

    return {"rgb_map": rgb_map, "acc_map": acc_map, "depth_map": depth_map, "rgb0": rgb_map_0, "acc0": acc_map_0}


def render(rays_o, rays_d, chunk, **kwargs):
    """Render rays in smaller minibatches to avoid OOM."""
    all_ret = {}
    for i in range(0, rays_o.shape[0], chunk):
        ret = render_rays(rays_o[i:i + chunk], rays_d[i:i + chunk], **kwargs)
        for k in ret:
            if k not in all_ret:
                all_ret[k] = []
            all_ret[k].append(ret[k])
    return {k: torch.cat(all_ret[k], 0) for k in all_ret}


# ----------------------------------------------------------------------------
# Training
# ----------------------------------------------------------------------------
images, poses, (H, W, focal) = load_scene()
i_test = [len(images) - 1]
i_train = [i for i in range(len(images)) if i not in i_test]
print("Loaded scene", images.shape, poses.shape)
images = torch.Tensor(images).to(device)
poses = torch.Tensor(poses).to(device)

embed_fn, input_ch = get_embedder(args.multires)
embeddirs_fn, input_ch_views = get_embedder(args.multires_views)
model = NeRF(D=args.netdepth, W=args.netwidth, input_ch=input_ch, input_ch_views=input_ch_views).to(device)
model_fine = NeRF(D=args.netdepth, W=args.netwidth, input_ch=input_ch, input_ch_views=input_ch_views).to(device)
grad_vars = list(model.parameters()) + list(model_fine.parameters())

network_query_fn = lambda inputs, viewdirs, network_fn: run_network(
    inputs, viewdirs, network_fn, embed_fn=embed_fn, embeddirs_fn=embeddirs_fn, netchunk=args.netchunk)

optimizer = torch.optim.Adam(params=grad_vars, lr=args.lrate, betas=(0.9, 0.999))

render_kwargs = dict(near=2., far=6., model=model, model_fine=model_fine, network_query_fn=network_query_fn,
                     N_samples=args.N_samples, N_importance=args.N_importance)

global_step = 0
for i in range(1, args.steps + 1):
    # Random from one image
    img_i = np.random.choice(i_train)
    target = images[img_i]
    pose = poses[img_i, :3, :4]

    rays_o, rays_d = get_rays(H, W, focal, pose)
    coords = torch.stack(torch.meshgrid(torch.linspace(0, H - 1, H), torch.linspace(0, W - 1, W), indexing="ij"), -1)
    coords = torch.reshape(coords, [-1, 2])  # (H * W, 2)
    select_inds = np.random.choice(coords.shape[0], size=[args.N_rand], replace=False)
    select_coords = coords[select_inds].long()  # (N_rand, 2)
    rays_o = rays_o[select_coords[:, 0], select_coords[:, 1]]
    rays_d = rays_d[select_coords[:, 0], select_coords[:, 1]]
    target_s = target[select_coords[:, 0], select_coords[:, 1]]

    ret = render(rays_o, rays_d, args.chunk, perturb=1., **render_kwargs)

    optimizer.zero_grad()
    img_loss = img2mse(ret["rgb_map"], target_s)
    loss = img_loss
    psnr = mse2psnr(img_loss)
    img_loss0 = img2mse(ret["rgb0"], target_s)
    loss = loss + img_loss0
    psnr0 = mse2psnr(img_loss0)
    loss.backward()
    optimizer.step()

    # update learning rate
    decay_rate = 0.1
    decay_steps = args.lrate_decay * 1000
    new_lrate = args.lrate * (decay_rate ** (global_step / decay_steps))
    for param_group in optimizer.param_groups:
        param_group["lr"] = new_lrate

    if i % args.i_print == 0:
        print(f"step {i} loss {loss.item():.6f} PSNR {psnr.item():.3f}", flush=True)
    global_step += 1

with torch.no_grad():
    rays_o, rays_d = get_rays(H, W, focal, poses[i_test[0], :3, :4])
    ret = render(rays_o.reshape(-1, 3), rays_d.reshape(-1, 3), args.chunk, perturb=0., **render_kwargs)
    test_loss = img2mse(ret["rgb_map"], images[i_test[0]].reshape(-1, 3))
print(f"test PSNR {mse2psnr(test_loss).item():.3f}")
