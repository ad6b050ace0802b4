# PointNet classification, smaller than in the paper (512 global features) so that it trains on a laptop.
from __future__ import print_function

import argparse
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torch.utils.data as data

SHAPES = ['sphere', 'cube', 'cone', 'cylinder', 'torus', 'pyramid', 'helix', 'plane']


# --------------------------------------------------------------------- shapes
def make_shape(name, n, rng):
    u, v = rng.uniform(0, 1, n), rng.uniform(0, 1, n)
    t = 2 * np.pi * u
    if name == 'sphere':
        p = rng.normal(size=(n, 3))
        p /= np.linalg.norm(p, axis=1, keepdims=True)
    elif name == 'cube':
        p = rng.uniform(-1, 1, (n, 3))
        axis, side = rng.integers(0, 3, n), rng.choice([-1.0, 1.0], n)
        p[np.arange(n), axis] = side
    elif name == 'cone':
        r = np.sqrt(v)
        p = np.stack([r * np.cos(t), r * np.sin(t), 1 - 2 * r], 1)
        base = rng.uniform(0, 1, n) < 0.3
        p[base, 2] = -1
    elif name == 'cylinder':
        p = np.stack([np.cos(t), np.sin(t), 2 * v - 1], 1)
        cap = rng.uniform(0, 1, n) < 0.3
        p[cap, :2] *= np.sqrt(rng.uniform(0, 1, (cap.sum(), 1)))
        p[cap, 2] = np.sign(p[cap, 2])
    elif name == 'torus':
        s, r = 2 * np.pi * v, rng.uniform(0.2, 0.4)
        p = np.stack([(1 + r * np.cos(s)) * np.cos(t), (1 + r * np.cos(s)) * np.sin(t), r * np.sin(s)], 1)
    elif name == 'pyramid':
        h = 1 - np.sqrt(v)
        q = rng.uniform(-1, 1, (n, 2))
        side = rng.integers(0, 2, n)
        q[np.arange(n), side] = np.sign(q[np.arange(n), side])
        p = np.concatenate([q * (1 - h)[:, None], (2 * h - 1)[:, None]], 1)
    elif name == 'helix':
        p = np.stack([np.cos(3 * t), np.sin(3 * t), 2 * u - 1], 1) + rng.normal(0, 0.05, (n, 3))
    else:
        p = np.stack([2 * u - 1, 2 * v - 1, 0.3 * np.sin(3 * (2 * u - 1))], 1)
    return p * rng.uniform(0.6, 1.4, (1, 3))


class ShapeDataset(data.Dataset):
    def __init__(self, size, npoints=1024, data_augmentation=True, seed=0):
        self.npoints = npoints
        self.data_augmentation = data_augmentation
        rng = np.random.default_rng(seed)
        self.clouds, self.labels = [], []
        for i in range(size):
            label = i % len(SHAPES)
            cloud = make_shape(SHAPES[label], 2048, rng)
            # half of the objects are seen from one side only
            if rng.uniform() < 0.5:
                direction = rng.normal(size=3)
                order = np.argsort(cloud @ direction)
                cloud = cloud[order[:1300]]
            self.clouds.append(cloud.astype(np.float32))
            self.labels.append(label)

    def __getitem__(self, index):
        point_set = self.clouds[index]
        choice = np.random.choice(len(point_set), self.npoints, replace=False)
        point_set = point_set[choice, :]

        point_set = point_set - np.expand_dims(np.mean(point_set, axis=0), 0)  # center
        dist = np.max(np.sqrt(np.sum(point_set ** 2, axis=1)), 0)
        point_set = point_set / dist  # scale

        if self.data_augmentation:
            theta = np.random.uniform(0, np.pi * 2)
            rotation_matrix = np.array([[np.cos(theta), -np.sin(theta)], [np.sin(theta), np.cos(theta)]])
            point_set[:, [0, 2]] = point_set[:, [0, 2]].dot(rotation_matrix)  # random rotation
            point_set += np.random.normal(0, 0.02, size=point_set.shape)  # random jitter

        point_set = torch.from_numpy(point_set.astype(np.float32))
        cls = torch.from_numpy(np.array([self.labels[index]]).astype(np.int64))
        return point_set, cls

    def __len__(self):
        return len(self.clouds)


# --------------------------------------------------------------------- model
class STN3d(nn.Module):
    def __init__(self):
        super(STN3d, self).__init__()
        self.conv1 = torch.nn.Conv1d(3, 64, 1)
        self.conv2 = torch.nn.Conv1d(64, 128, 1)
        self.conv3 = torch.nn.Conv1d(128, 512, 1)
        self.fc1 = nn.Linear(512, 256)
        self.fc2 = nn.Linear(256, 128)
        self.fc3 = nn.Linear(128, 9)
        self.relu = nn.ReLU()

        self.bn1 = nn.BatchNorm1d(64)
        self.bn2 = nn.BatchNorm1d(128)
        self.bn3 = nn.BatchNorm1d(512)
        self.bn4 = nn.BatchNorm1d(256)
        self.bn5 = nn.BatchNorm1d(128)

    def forward(self, x):
        batchsize = x.size()[0]
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        x = torch.max(x, 2, keepdim=True)[0]
        x = x.view(-1, 512)

        x = F.relu(self.bn4(self.fc1(x)))
        x = F.relu(self.bn5(self.fc2(x)))
        x = self.fc3(x)

        iden = torch.from_numpy(np.array([1, 0, 0, 0, 1, 0, 0, 0, 1]).astype(np.float32)).view(1, 9).repeat(batchsize, 1)
        if x.is_cuda:
            iden = iden.cuda()
        x = x + iden
        x = x.view(-1, 3, 3)
        return x


class STNkd(nn.Module):
    def __init__(self, k=64):
        super(STNkd, self).__init__()
        self.conv1 = torch.nn.Conv1d(k, 64, 1)
        self.conv2 = torch.nn.Conv1d(64, 128, 1)
        self.conv3 = torch.nn.Conv1d(128, 512, 1)
        self.fc1 = nn.Linear(512, 256)
        self.fc2 = nn.Linear(256, 128)
        self.fc3 = nn.Linear(128, k * k)
        self.relu = nn.ReLU()

        self.bn1 = nn.BatchNorm1d(64)
        self.bn2 = nn.BatchNorm1d(128)
        self.bn3 = nn.BatchNorm1d(512)
        self.bn4 = nn.BatchNorm1d(256)
        self.bn5 = nn.BatchNorm1d(128)

        self.k = k

    def forward(self, x):
        batchsize = x.size()[0]
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        x = torch.max(x, 2, keepdim=True)[0]
        x = x.view(-1, 512)

        x = F.relu(self.bn4(self.fc1(x)))
        x = F.relu(self.bn5(self.fc2(x)))
        x = self.fc3(x)

        iden = torch.from_numpy(np.eye(self.k).flatten().astype(np.float32)).view(1, self.k * self.k).repeat(batchsize, 1)
        if x.is_cuda:
            iden = iden.cuda()
        x = x + iden
        x = x.view(-1, self.k, self.k)
        return x


class PointNetfeat(nn.Module):
    def __init__(self, feature_transform=False):
        super(PointNetfeat, self).__init__()
        self.stn = STN3d()
        self.conv1 = torch.nn.Conv1d(3, 64, 1)
        self.conv2 = torch.nn.Conv1d(64, 128, 1)
        self.conv3 = torch.nn.Conv1d(128, 512, 1)
        self.bn1 = nn.BatchNorm1d(64)
        self.bn2 = nn.BatchNorm1d(128)
        self.bn3 = nn.BatchNorm1d(512)
        self.feature_transform = feature_transform
        if self.feature_transform:
            self.fstn = STNkd(k=64)

    def forward(self, x):
        trans = self.stn(x)
        x = x.transpose(2, 1)
        x = torch.bmm(x, trans)
        x = x.transpose(2, 1)
        x = F.relu(self.bn1(self.conv1(x)))

        if self.feature_transform:
            trans_feat = self.fstn(x)
            x = x.transpose(2, 1)
            x = torch.bmm(x, trans_feat)
            x = x.transpose(2, 1)
        else:
            trans_feat = None

        x = F.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x = torch.max(x, 2, keepdim=True)[0]
        x = x.view(-1, 512)
        return x, trans, trans_feat


class PointNetCls(nn.Module):
    def __init__(self, k=2, feature_transform=False):
        super(PointNetCls, self).__init__()
        self.feature_transform = feature_transform
        self.feat = PointNetfeat(feature_transform=feature_transform)
        self.fc1 = nn.Linear(512, 256)
        self.fc2 = nn.Linear(256, 128)
        self.fc3 = nn.Linear(128, k)
        self.dropout = nn.Dropout(p=0.3)
        self.bn1 = nn.BatchNorm1d(256)
        self.bn2 = nn.BatchNorm1d(128)
        self.relu = nn.ReLU()

    def forward(self, x):
        x, trans, trans_feat = self.feat(x)
        x = F.relu(self.bn1(self.fc1(x)))
        x = F.relu(self.bn2(self.dropout(self.fc2(x))))
        x = self.fc3(x)
        return F.log_softmax(x, dim=1), trans, trans_feat


def feature_transform_regularizer(trans):
    d = trans.size()[1]
    I = torch.eye(d)[None, :, :]
    if trans.is_cuda:
        I = I.cuda()
    loss = torch.mean(torch.norm(torch.bmm(trans, trans.transpose(2, 1)) - I, dim=(1, 2)))
    return loss


# --------------------------------------------------------------------- training
def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument('--batchSize', type=int, default=16, help='input batch size')
    parser.add_argument('--num_points', type=int, default=1024, help='points per cloud')
    parser.add_argument('--train_size', type=int, default=1280, help='number of clouds')
    parser.add_argument('--steps', type=int, default=240, help='number of steps to train for')
    parser.add_argument('--lr', type=float, default=0.001)
    parser.add_argument('--no_feature_transform', action='store_true')
    parser.add_argument('--manualSeed', type=int, default=7)
    return parser.parse_args()


def train(opt, classifier, dataloader, optimizer, scheduler, device):
    step, losses = 0, []
    while step < opt.steps:
        total_correct, total_seen = 0, 0
        for points, target in dataloader:
            target = target[:, 0]
            points = points.transpose(2, 1)
            points, target = points.to(device), target.to(device)
            optimizer.zero_grad()
            classifier = classifier.train()
            pred, trans, trans_feat = classifier(points)
            loss = F.nll_loss(pred, target)
            if trans_feat is not None:
                loss += feature_transform_regularizer(trans_feat) * 0.001
            loss.backward()
            optimizer.step()

            pred_choice = pred.data.max(1)[1]
            correct = pred_choice.eq(target.data).cpu().sum()
            total_correct += correct.item()
            total_seen += points.size(0)
            losses.append(loss.item())
            step += 1
            if step % 10 == 0:
                print('step %d loss %f accuracy %f' % (step, loss.item(), correct.item() / float(opt.batchSize)), flush=True)
            if step >= opt.steps:
                break
        scheduler.step()
        print('epoch accuracy %f' % (total_correct / float(total_seen)), flush=True)
    return losses


def main():
    opt = get_args()
    random.seed(opt.manualSeed)
    np.random.seed(opt.manualSeed)
    torch.manual_seed(opt.manualSeed)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

    dataset = ShapeDataset(opt.train_size, opt.num_points, seed=opt.manualSeed)
    dataloader = data.DataLoader(dataset, batch_size=opt.batchSize, shuffle=True)

    classifier = PointNetCls(k=len(SHAPES), feature_transform=not opt.no_feature_transform).to(device)
    optimizer = optim.Adam(classifier.parameters(), lr=opt.lr, betas=(0.9, 0.999))
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

    losses = train(opt, classifier, dataloader, optimizer, scheduler, device)
    last = losses[-50:]
    print('mean loss of the last %d steps %f' % (len(last), sum(last) / len(last)))


if __name__ == '__main__':
    main()
