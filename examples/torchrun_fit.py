"""A fit in several processes: torchrun --nproc_per_node=2 examples/torchrun_fit.py

Each process reads its shard, and all of them end with the posterior of all of the data. Without torchrun, one does it.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from richbll import RichBLL

if dist.is_torchelastic_launched():
    dist.init_process_group("gloo")  # "nccl" where every process has a GPU

torch.manual_seed(0)  # the same model and data everywhere; a real script loads a checkpoint
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
x = torch.randn(1001, 2)
data = TensorDataset(x, torch.sin(x).sum(dim=1))

sampler = DistributedSampler(data, shuffle=False) if dist.is_initialized() else None
uq = RichBLL(model, noise_variance=0.01).fit(DataLoader(data, batch_size=100, sampler=sampler))

std = uq.predict(torch.zeros(1, 2)).epistemic_variance.sqrt().item()
rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
print(f"rank {rank} of {size}: {uq.num_data} examples, standard deviation {std:.6f} at the origin", flush=True)
if dist.is_initialized():
    dist.destroy_process_group()
