# SPDX-License-Identifier: Apache-2.0
"""Two DDP models in turn, validation, a loader with workers; nothing here knows of presum."""

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(steps: int) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 4))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1)
    generator = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4)))
    critic = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    torch.manual_seed(1 + dist.get_rank())
    ways = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (generator, critic)]
    with torch.no_grad():
        critic(data.tensors[0])
    for epoch in range(steps // len(loader)):
        sampler.set_epoch(epoch)
        for (real,) in loader:
            fake = generator(torch.randn_like(real))
            ways[1].zero_grad()
            loss = critic(fake.detach()).mean() - critic(real).mean()
            loss.backward()
            ways[1].step()
            ways[0].zero_grad()
            critic.requires_grad_(False)
            (-critic.module(fake).mean()).backward()
            critic.requires_grad_(True)
            ways[0].step()
        print(f"rank {dist.get_rank()} epoch {epoch} loss {loss.item():.9f}")


def train_alone() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--end", default="well")
    parser.add_argument("--alone", action="store_true")
    found = parser.parse_args()
    if found.alone:
        return train_alone()
    dist.init_process_group("gloo")
    train(16)
    if found.end == "error":
        raise RuntimeError("the program's own")
    if found.end == "kill":
        os.kill(os.getpid(), 9)
    dist.destroy_process_group()
    if found.end == "code":
        sys.exit(7)
    return None


if __name__ == "__main__":
    main()
