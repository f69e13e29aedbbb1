#!/usr/bin/env python3
"""Makes tests/golden/networks: small networks of the usual kinds with random weights, as PNNX and as ONNX, with what
PyTorch computes; and expressions.json, every function of PNNX's expressions with PyTorch's results.

  python tools/make_golden_networks.py tests/golden/networks

Needs torch, pnnx, onnx, numpy and safetensors (made with 2.9.1, 20260526, 1.19.1, 2.4.6 and 0.8.0).
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import pnnx
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.numpy import save_file


class ConvUnit(nn.Module):
    def __init__(self, a, b, k=1, stride=1, groups=1, act=nn.SiLU, pad=None):
        super().__init__()
        self.conv = nn.Conv2d(a, b, k, stride, k // 2 if pad is None else pad, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(b)
        self.act = act() if act else nn.Identity()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class Residual(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.first = ConvUnit(a, b, 3, stride, act=nn.ReLU)
        self.second = ConvUnit(b, b, 3, act=None)
        self.short = ConvUnit(a, b, 1, stride, act=None) if stride != 1 or a != b else nn.Identity()

    def forward(self, x):
        return F.relu(self.second(self.first(x)) + self.short(x))


class ResNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.stem = ConvUnit(3, c, 7, 2, act=nn.ReLU)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.body = nn.Sequential(Residual(c, c, 1), Residual(c, 2 * c, 2), Residual(2 * c, 2 * c, 1), Residual(2 * c, 3 * c, 2))
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(3 * c, 10)

    def forward(self, x):
        return self.head(torch.flatten(self.mean(self.body(self.pool(self.stem(x)))), 1))


class Squeeze(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.down, self.up = nn.Conv2d(c, c // 2, 1), nn.Conv2d(c // 2, c, 1)

    def forward(self, x):
        return x * F.hardsigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class Inverted(nn.Module):
    def __init__(self, a, b, k, stride, act, squeeze):
        super().__init__()
        wide = a * 3
        self.body = nn.Sequential(ConvUnit(a, wide, act=act), ConvUnit(wide, wide, k, stride, wide, act),
                                  Squeeze(wide) if squeeze else nn.Identity(), ConvUnit(wide, b, act=None))
        self.add = stride == 1 and a == b

    def forward(self, x):
        return x + self.body(x) if self.add else self.body(x)


class MobileNet(nn.Module):
    def __init__(self, c=6):
        super().__init__()
        self.stem = ConvUnit(3, c, 3, 2, act=nn.Hardswish)
        self.body = nn.Sequential(Inverted(c, c, 3, 1, nn.ReLU6, False), Inverted(c, 2 * c, 5, 2, nn.Hardswish, True),
                                  Inverted(2 * c, 2 * c, 3, 1, nn.Hardswish, True))
        self.head = nn.Sequential(nn.Linear(2 * c, 16), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(16, 10))

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean([2, 3]))


class Csp(nn.Module):
    def __init__(self, a, b, add=True):
        super().__init__()
        h = b // 2
        self.one, self.two, self.last = ConvUnit(a, h), ConvUnit(a, h), ConvUnit(2 * h, b)
        self.in1, self.in2, self.add = ConvUnit(h, h), ConvUnit(h, h, 3), add

    def forward(self, x):
        y = self.one(x)
        z = self.in2(self.in1(y))
        return self.last(torch.cat((y + z if self.add else z, self.two(x)), 1))


class Yolo(nn.Module):
    def __init__(self, c=4, classes=4):
        super().__init__()
        self.stem = ConvUnit(3, c, 6, 2, pad=2)
        self.down1, self.csp1 = ConvUnit(c, 2 * c, 3, 2), Csp(2 * c, 2 * c)
        self.down2, self.csp2 = ConvUnit(2 * c, 4 * c, 3, 2), Csp(4 * c, 4 * c)
        self.down3 = ConvUnit(4 * c, 8 * c, 3, 2)
        self.in1, self.in2, self.pool = ConvUnit(8 * c, 4 * c), ConvUnit(16 * c, 8 * c), nn.MaxPool2d(5, 1, 2)
        self.lateral, self.up, self.csp3 = ConvUnit(8 * c, 4 * c), nn.Upsample(scale_factor=2, mode="nearest"), Csp(8 * c, 4 * c, False)
        self.width = classes + 5
        self.heads = nn.ModuleList([nn.Conv2d(4 * c, 3 * self.width, 1), nn.Conv2d(8 * c, 3 * self.width, 1)])
        self.register_buffer("anchors", torch.rand(2, 3, 1, 1, 2) * 50 + 10)

    def forward(self, x):
        p3 = self.csp2(self.down2(self.csp1(self.down1(self.stem(x)))))
        x = self.in1(self.down3(p3))
        y = self.pool(x)
        z = self.pool(y)
        p4 = self.in2(torch.cat((x, y, z, self.pool(z)), 1))
        p3 = self.csp3(torch.cat((self.up(self.lateral(p4)), p3), 1))
        boxes = []
        for i, (features, stride) in enumerate(((p3, 8.0), (p4, 16.0))):
            y = self.heads[i](features)
            b, _, ny, nx = y.shape
            y = y.view(b, 3, self.width, ny, nx).permute(0, 1, 3, 4, 2).contiguous().sigmoid()
            gy, gx = torch.meshgrid(torch.arange(ny), torch.arange(nx), indexing="ij")
            grid = torch.stack((gx, gy), 2).float()
            xy = (y[..., 0:2] * 2 - 0.5 + grid) * stride
            wh = (y[..., 2:4] * 2) ** 2 * self.anchors[i]
            boxes.append(torch.cat((xy, wh, y[..., 4:]), -1).view(b, -1, self.width))
        return torch.cat(boxes, 1)


class UNet(nn.Module):
    def __init__(self, c=4):
        super().__init__()
        pair = lambda a, b: nn.Sequential(ConvUnit(a, b, 3, act=nn.ReLU), ConvUnit(b, b, 3, act=nn.ReLU))
        self.inside, self.down1, self.down2 = pair(3, c), pair(c, 2 * c), pair(2 * c, 4 * c)
        self.up1, self.join1 = nn.ConvTranspose2d(4 * c, 2 * c, 2, 2), pair(4 * c, 2 * c)
        self.up2, self.join2, self.out = nn.ConvTranspose2d(2 * c, c, 2, 2), pair(2 * c, c), nn.Conv2d(c, 2, 1)

    def forward(self, x):
        a = self.inside(x)
        b = self.down1(F.max_pool2d(a, 2))
        y = self.up1(self.down2(F.max_pool2d(b, 2)))
        y = F.pad(y, [0, b.size(3) - y.size(3), 0, b.size(2) - y.size(2)])
        y = self.join1(torch.cat([b, y], 1))
        y = F.interpolate(self.up2(y), size=a.shape[2:], mode="bilinear", align_corners=False)
        return self.out(self.join2(torch.cat([a, y], 1)))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.LayerNorm(d), nn.LayerNorm(d), heads
        self.qkv, self.proj, self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        a = (q @ k.transpose(-2, -1) * (d // self.heads) ** -0.5).softmax(-1)
        x = x + self.proj((a @ v).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.patches, self.cls, self.pos = nn.Conv2d(3, d, 8, 8), nn.Parameter(torch.randn(1, 1, d)), nn.Parameter(torch.randn(1, 17, d) * 0.1)
        self.body, self.norm, self.head = nn.Sequential(Block(d, 3), Block(d, 3)), nn.LayerNorm(d), nn.Linear(d, 5)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), 1) + self.pos
        return self.head(self.norm(self.body(x))[:, 0])


class MiniLm(nn.Module):
    def __init__(self, vocab=50, d=24, heads=3):
        super().__init__()
        self.words, self.places, self.norm, self.heads = nn.Embedding(vocab, d), nn.Embedding(16, d), nn.LayerNorm(d), heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, ids, mask):
        b, n = ids.shape
        x = self.norm(self.words(ids) + self.places(torch.arange(n)[None]))
        split = lambda t: t.view(b, n, self.heads, -1).transpose(1, 2)
        hidden = (1.0 - mask[:, None, None, :].float()) * -10000.0
        y = F.scaled_dot_product_attention(split(self.q(x)), split(self.k(x)), split(self.v(x)), attn_mask=hidden)
        x = self.norm(x + self.o(y.transpose(1, 2).reshape(b, n, -1)))
        m = mask.unsqueeze(-1).expand(x.size()).float()
        return F.normalize((x * m).sum(1) / torch.clamp(m.sum(1), min=1e-9), p=2, dim=1)


class Mixed(nn.Module):
    """What the others do not have."""

    def __init__(self):
        super().__init__()
        self.conv1, self.group, self.instance, self.prelu = nn.Conv1d(4, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.InstanceNorm1d(6, affine=True), nn.PReLU(6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        x = self.prelu(self.instance(self.group(self.conv1(x))))
        a, b = torch.chunk(x, 2, dim=1)
        y = torch.stack((a, b), 1).flatten(1, 2)
        y = torch.cat((y, torch.roll(y, 1, 2)), 1)[:, 1:7:1, ::2]
        z = self.attention(y.transpose(1, 2), y.transpose(1, 2), y.transpose(1, 2), need_weights=False)[0]
        best, where = torch.topk(z, 3, dim=1)
        return F.leaky_relu(best, 0.1).log_softmax(-1), torch.argmax(z, 1), torch.where(z > 0, z, z * 0.5).amax(1), F.elu(z).mean(1)


def networks():
    image = lambda *shape: (torch.randn(*shape),)
    yield "resnet", ResNet(), image(1, 3, 32, 40)
    yield "mobilenet", MobileNet(), image(2, 3, 32, 32)
    yield "yolo", Yolo(), image(1, 3, 64, 96)
    yield "unet", UNet(), image(1, 3, 28, 36)
    yield "vit", ViT(), image(1, 3, 32, 32)
    mask = torch.cat((torch.ones(2, 8), torch.zeros(2, 4)), 1).long()
    yield "minilm", MiniLm(), (torch.randint(0, 50, (2, 12)), mask)
    yield "mixed", Mixed(), image(2, 4, 16)


def expressions():
    a = torch.tensor([[-1.7, -0.5, 0.25], [0.75, 2.5, 3.0]])
    b = torch.tensor([[2.0, -1.5, 0.5]])
    i = torch.tensor([[-7, 5, 12]])
    j = torch.tensor([[3, 2, -5]])
    unit = a.clamp(-0.9, 0.9)
    positive = a.abs() + 0.1
    t = torch
    for name, x in [("abs", a), ("acos", unit), ("acosh", positive + 1), ("asin", unit), ("asinh", a), ("atan", a), ("atanh", unit), ("ceil", a), ("cos", a),
                    ("cosh", a), ("erf", a), ("exp", a), ("expm1", a), ("floor", a), ("log", positive), ("log10", positive), ("log1p", positive), ("neg", a),
                    ("reciprocal", a), ("round", a), ("rsqrt", positive), ("sign", a), ("sin", a), ("sinh", a), ("sqrt", positive), ("square", a), ("tan", a),
                    ("tanh", a), ("trunc", a)]:
        yield f"{name}(@0)", [x], getattr(t, name)(x)
    yield "torch.bool(@0)", [i], i.bool()
    yield "torch.float(@0)", [i], i.float()
    yield "torch.long(@0)", [a], a.long()
    yield "int(@0)", [a], a.long()
    for name in ["add", "sub", "mul", "div", "floor_divide", "remainder", "atan2", "fmod", "maximum", "minimum", "logaddexp"]:
        yield f"{name}(@0,@1)", [a, b], getattr(t, name)(a, b)
    yield "max(@0,@1)", [a, b], t.maximum(a, b)
    yield "min(@0,@1)", [a, b], t.minimum(a, b)
    yield "pow(@0,@1)", [positive, b], t.pow(positive, b)
    yield "pow(@0,2)", [a], a**2
    for name in ["add", "sub", "mul", "div", "floor_divide", "remainder"]:
        yield f"{name}(@0,@1)", [i, j], getattr(t, name)(i, j)
    for name, f in [("and", t.bitwise_and), ("or", t.bitwise_or), ("xor", t.bitwise_xor)]:
        yield f"{name}(@0,@1)", [i, j], f(i, j)
        yield f"{name}(@0,@1)", [i > 0, j > 0], f(i > 0, j > 0)
    yield "lshift(@0,2)", [i], i << 2
    yield "rshift(@0,1)", [i], i >> 1
    yield "add(@0,1)", [i], i + 1
    yield "mul(@0,0.5)", [i], i * 0.5
    yield "mul(add(sub(mul(@0,2),0.5),@1),8.0)", [a, b], (a * 2 - 0.5 + b) * 8.0
    yield "size(@0,1)", [a], t.tensor(3)
    yield "size(@0)", [a], t.tensor([2, 3])
    yield "[size(@0,0),mul(size(@0,1),2),-1]", [a], t.tensor([2, 6, -1])
    yield "[floor_divide(size(@0,1),2),int(mul(size(@0,1),1.5))]", [a], t.tensor([1, 4])
    yield "add(@0,floor_divide(size(@0,1),2))", [a], a + 1


def main():
    out = pathlib.Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    for name, model, inputs in networks():
        torch.manual_seed(3)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                module.weight.data.uniform_(0.5, 1.5)
                module.bias.data.normal_(0, 0.1)
        model.eval()
        with torch.no_grad():
            y = model(*inputs)
        y = y if isinstance(y, tuple) else (y,)
        with tempfile.TemporaryDirectory() as folder:
            before = os.getcwd()
            os.chdir(folder)
            pnnx.export(model, f"{name}.pt", inputs)
            torch.onnx.export(model, inputs, f"{name}.onnx", dynamo=False, opset_version=17)
            os.chdir(before)
            for end in ("pnnx.param", "pnnx.bin", "onnx"):
                shutil.copy(pathlib.Path(folder) / f"{name}.{end}", out / f"{name}.{end}")
        tensors = {f"x{i}": x.numpy() for i, x in enumerate(inputs)} | {f"y{i}": x.numpy() for i, x in enumerate(y)}
        save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, out / f"{name}.safetensors")
    kinds = {torch.float32: "f32", torch.int64: "i64", torch.bool: "bool"}
    tensor = lambda x: {"type": kinds[x.dtype], "shape": list(x.shape), "values": x.flatten().to(torch.float64).tolist()}
    rows = [{"expression": text, "inputs": [tensor(x) for x in xs], "result": tensor(y)} for text, xs, y in expressions()]
    (out / "expressions.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
