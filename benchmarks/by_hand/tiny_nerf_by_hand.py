"""Tiny NeRF: learn a small scene of coloured spheres from posed pictures -- tuned for a CPU with bf16.

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
parser.add_argument("--chunk", type=int, default=1024, help="rays rendered at once")
parser.add_argument("--lrate", type=float, default=1e-3)
parser.add_argument("--lrate_decay", type=float, default=1.0, help="decay by 0.1 every N thousand steps")
parser.add_argument("--i_print", type=int, default=10)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

np.random.seed(args.seed)
torch.manual_seed(args.seed)


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
# Model: the layers of NeRF, and its forward and backward pass written out in bf16
# ----------------------------------------------------------------------------
class NeRF(nn.Module):
    def __init__(self, D, W, input_ch, input_ch_views, skips=(3,)):
        super().__init__()
        self.skips = skips
        self.input_ch = input_ch
        self.pts_linears = nn.ModuleList(
            [nn.Linear(input_ch, W)] +
            [nn.Linear(W, W) if i not in skips else nn.Linear(W + input_ch, W) for i in range(D - 1)])
        self.views_linears = nn.ModuleList([nn.Linear(input_ch_views + W, W // 2)])
        self.feature_linear = nn.Linear(W, W)
        self.alpha_linear = nn.Linear(W, 1)
        self.rgb_linear = nn.Linear(W // 2, 3)

    def forward(self, enc, enc_dirs):
        """enc: [N_rays, N_samples, input_ch + 1] bf16, last column 1; enc_dirs: [N_rays, input_ch_views]."""
        W = self.feature_linear.weight.shape[0]
        views, feature = self.views_linears[0], self.feature_linear
        # no activation lies between feature and views: one matrix. The direction is the same for a whole ray.
        V1, V2 = views.weight[:, :W], views.weight[:, W:]
        heads = torch.cat([V1 @ feature.weight, self.alpha_linear.weight])
        per_ray = torch.addmm(torch.addmv(views.bias, V1, feature.bias), enc_dirs, V2.t())
        trunk = []
        for i, l in enumerate(self.pts_linears):
            trunk += [l.weight, l.bias]
        raw_rgb, raw_alpha = MLP.apply(enc.flatten(0, 1), per_ray, heads, self.alpha_linear.bias,
                                       self.rgb_linear.weight, self.rgb_linear.bias,
                                       [i + 1 for i in self.skips], *trunk)
        return raw_rgb.view(*enc.shape[:2], 3), raw_alpha.view(enc.shape[:2])


linear = torch.ops.mkldnn._linear_pointwise
drelu = torch.ops.aten.threshold_backward


class MLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, enc, per_ray, heads, b_alpha, w_rgb, b_rgb, after_skip, *trunk):
        bf16 = torch.bfloat16
        ws, bs = [w.to(bf16) for w in trunk[0::2]], [b.to(bf16) for b in trunk[1::2]]
        C = enc.shape[1]
        xs, h = [], None                       # input of every layer
        for i, (w, b) in enumerate(zip(ws, bs)):
            if i == 0:                         # bias sits in the column of ones
                w = ws[0] = torch.cat([w, b[:, None]], 1)
                h, b = enc, None
            elif i in after_skip:
                w = ws[i] = torch.cat([w[:, :C - 1], b[:, None], w[:, C - 1:]], 1)
                h, b = torch.cat([enc, h], 1), None
            xs.append(h)
            h = linear(h, w, b, "relu", [], "")
        heads, w_rgb16 = heads.to(bf16), w_rgb.to(bf16)
        K = w_rgb.shape[1]
        alpha = (h @ heads[K]).float() + b_alpha
        # Empty space (density 0) has no colour and, exactly, no gradient: only the rest goes on
        full = torch.nonzero(alpha > 0)[:, 0]
        if not len(full):
            full = torch.zeros(1, dtype=torch.long)
        few = len(full) < 0.9 * len(alpha)
        if few:
            h = h.index_select(0, full)
        else:
            full = torch.arange(len(alpha))
        ray = full // (len(alpha) // len(per_ray))
        v = linear(h, heads[:K], None, "none", [], "")
        v = v.add_(per_ray.to(bf16).index_select(0, ray)).relu_()
        rgb = torch.zeros(len(alpha), 3).index_copy_(0, full, (v @ w_rgb16.t()).float() + b_rgb)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(full, ray, h, v, heads, w_rgb16, *(x.index_select(0, full) if few else x for x in xs), *ws)
        ctx.after_skip, ctx.C, ctx.rays = after_skip, C, len(per_ray)
        return rgb, alpha

    @staticmethod
    def backward(ctx, d_rgb, d_alpha):
        full, ray, h, v, heads, w_rgb, *rest = ctx.saved_tensors
        n, C, K = len(rest) // 2, ctx.C, w_rgb.shape[1]
        xs, ws = rest[:n], rest[n:]
        d_rgb, d_alpha = d_rgb.index_select(0, full), d_alpha.index_select(0, full)
        db_rgb, db_alpha = d_rgb.sum(0), d_alpha.sum().view(1)
        d_rgb, d_alpha = d_rgb.bfloat16(), d_alpha.bfloat16()
        dw_rgb = d_rgb.t() @ v
        dv = drelu(d_rgb @ w_rgb, v, 0)
        d_per_ray = torch.zeros(ctx.rays, K).index_add_(0, ray, dv.float())
        d_heads = torch.cat([dv.t() @ h, (d_alpha[None] @ h)]).float()
        dh = torch.addmm(torch.outer(d_alpha, heads[K]), dv, heads[:K])
        grads = []
        for i in reversed(range(n)):
            dh = drelu(dh, h, 0)
            x = h = xs[i]
            dw = (dh.t() @ x).float()
            if i == 0:
                grads = [dw[:, :C - 1], dw[:, C - 1]] + grads
            elif i in ctx.after_skip:
                grads = [torch.cat([dw[:, :C - 1], dw[:, C:]], 1), dw[:, C - 1]] + grads
                dh = dh @ ws[i][:, C:]
                h = x[:, C:]
            else:
                grads = [dw, dh.sum(0).float()] + grads
                dh = dh @ ws[i]
        return (None, d_per_ray, d_heads, db_alpha, dw_rgb.float(), db_rgb, None, *grads)


def embed(x, out):
    """[x, sin x, cos x, sin 2x, cos 2x, ...] into the columns of out."""
    n = out.shape[-1] // 6
    out[..., :3] = x
    angles = x[..., None, :] * (2. ** torch.arange(n))[:, None]
    bands = out[..., 3:3 + 6 * n].unflatten(-1, (n, 2, 3))
    bands[..., 0, :] = angles.sin()
    bands[..., 1, :] = angles.cos_()
    return out


# ----------------------------------------------------------------------------
# Volume rendering
# ----------------------------------------------------------------------------
def get_rays(H, W, focal, c2w):
    i, j = torch.meshgrid(torch.linspace(0, W - 1, W), torch.linspace(0, H - 1, H), indexing="xy")
    dirs = torch.stack([(i - W * .5) / focal, -(j - H * .5) / focal, -torch.ones_like(i)], -1)
    rays_d = torch.sum(dirs[..., np.newaxis, :] * c2w[:3, :3], -1)
    return c2w[:3, -1].expand(rays_d.shape).reshape(-1, 3), rays_d.reshape(-1, 3)


def sample_pdf(bins, weights, u):
    weights = weights + 1e-5
    cdf = F.pad(torch.cumsum(weights / weights.sum(-1, keepdim=True), -1), (1, 0))
    inds = torch.searchsorted(cdf, u, right=True)
    below = (inds - 1).clamp_(min=0)
    above = inds.clamp_(max=cdf.shape[-1] - 1)
    c0, c1 = cdf.gather(1, below), cdf.gather(1, above)
    b0, b1 = bins.gather(1, below), bins.gather(1, above)
    denom = c1 - c0
    denom[denom < 1e-5] = 1
    return b0 + (u - c0) / denom * (b1 - b0)


def raw2outputs(raw_rgb, raw_alpha, z_vals, norm_d):
    """White behind the scene. exp(-sum of densities) is the transmittance, so no cumprod is needed."""
    S = z_vals.shape[1]
    density = F.relu(raw_alpha)
    depth = torch.cumsum(density[:, :-1] * ((z_vals[:, 1:] - z_vals[:, :-1]) * norm_d), -1)
    T = F.pad(torch.exp(-depth), (1, 0), value=1.)
    T_end = torch.exp(-1e10 * norm_d * density[:, -1:]) * T[:, -1:]
    weights = T - torch.cat([T[:, 1:], T_end], 1)
    rgb_map = torch.bmm(weights[:, None], torch.sigmoid(raw_rgb))[:, 0] + T_end
    return rgb_map, weights


def query(model, rays_o, rays_d, z_vals, enc_dirs):
    pts = torch.addcmul(rays_o[:, None], rays_d[:, None], z_vals[..., None])
    enc = torch.ones(*z_vals.shape, model.input_ch + 1, dtype=torch.bfloat16)
    embed(pts, enc[..., :-1])
    return model(enc, enc_dirs)


def render_rays(rays_o, rays_d, near, far, model, model_fine, N_samples, N_importance, perturb=1.):
    N_rays = rays_o.shape[0]
    norm_d = torch.norm(rays_d, dim=-1, keepdim=True)
    enc_dirs = embed(rays_d / norm_d, torch.empty(N_rays, 3 + 6 * args.multires_views))

    t_vals = torch.linspace(0., 1., steps=N_samples)
    z_vals = (near * (1. - t_vals) + far * t_vals).expand(N_rays, N_samples)
    if perturb > 0.:
        mids = .5 * (z_vals[..., 1:] + z_vals[..., :-1])
        upper = torch.cat([mids, z_vals[..., -1:]], -1)
        lower = torch.cat([z_vals[..., :1], mids], -1)
        z_vals = torch.lerp(lower, upper, torch.rand(z_vals.shape))
    rgb_map_0, weights = raw2outputs(*query(model, rays_o, rays_d, z_vals, enc_dirs), z_vals, norm_d)

    with torch.no_grad():
        z_mid = .5 * (z_vals[..., 1:] + z_vals[..., :-1])
        u = torch.rand(N_rays, N_importance) if perturb else torch.linspace(0., 1., N_importance).repeat(N_rays, 1)
        z_samples = sample_pdf(z_mid, weights[..., 1:-1], u)
        z_vals, _ = torch.sort(torch.cat([z_vals, z_samples], -1), -1)
    rgb_map, _ = raw2outputs(*query(model_fine, rays_o, rays_d, z_vals, enc_dirs), z_vals, norm_d)
    return rgb_map, rgb_map_0


# ----------------------------------------------------------------------------
# Training
# ----------------------------------------------------------------------------
images, poses, (H, W, focal) = load_scene()
i_test = len(images) - 1
i_train = list(range(len(images) - 1))
print("Loaded scene", images.shape, poses.shape)
images = torch.from_numpy(images).flatten(1, 2)
rays = [get_rays(H, W, focal, torch.from_numpy(p[:3, :4])) for p in poses]

input_ch, input_ch_views = 3 + 6 * args.multires, 3 + 6 * args.multires_views
model = NeRF(args.netdepth, args.netwidth, input_ch, input_ch_views)
model_fine = NeRF(args.netdepth, args.netwidth, input_ch, input_ch_views)
params = list(model.parameters()) + list(model_fine.parameters())
optimizer = torch.optim.Adam(params, lr=args.lrate, betas=(0.9, 0.999), fused=True)
render_kwargs = dict(near=2., far=6., model=model, model_fine=model_fine,
                     N_samples=args.N_samples, N_importance=args.N_importance)

for i in range(1, args.steps + 1):
    img_i = np.random.choice(i_train)
    select = torch.from_numpy(np.random.choice(H * W, size=[args.N_rand], replace=False))
    rgb, rgb0 = render_rays(rays[img_i][0][select], rays[img_i][1][select], **render_kwargs)
    target_s = images[img_i][select]

    img_loss = F.mse_loss(rgb, target_s)
    loss = img_loss + F.mse_loss(rgb0, target_s)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = args.lrate * 0.1 ** ((i - 1) / (args.lrate_decay * 1000))

    if i % args.i_print == 0:
        print(f"step {i} loss {loss.item():.6f} PSNR {-10 * np.log10(img_loss.item()):.3f}", flush=True)

with torch.no_grad():
    out = [render_rays(o, d, perturb=0., **render_kwargs)[0]
           for o, d in zip(rays[i_test][0].split(args.chunk), rays[i_test][1].split(args.chunk))]
    test_loss = F.mse_loss(torch.cat(out), images[i_test])
print(f"test PSNR {-10 * np.log10(test_loss.item()):.3f}")
