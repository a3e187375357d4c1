# SPDX-License-Identifier: Apache-2.0
"""Two ranks exchange data until rank 1 kills itself; rank 0 is left in a collective that cannot end.

Started without a launcher that would clean up (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in the environment).
"""
import os
import signal

import torch
import torch.distributed as dist


def main():
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    x = torch.full((1024,), float(rank + 1), device=device)
    for step in range(10):
        if step == 5 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        y = x.clone()
        dist.all_reduce(y)
        torch.cuda.synchronize()
        print(f"step {step} sum {y[0].item():g}", flush=True)


if __name__ == "__main__":
    main()
