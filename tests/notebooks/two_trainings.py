# A teacher, and then a student that learns from it.

# %%
import torch
from torch import nn

torch.manual_seed(4)
data = torch.randn(256, 24)
labels = data[:, :4].argmax(1)

# %%
teacher = nn.Sequential(nn.Linear(24, 128), nn.GELU(), nn.Linear(128, 4))
optimizer = torch.optim.SGD(teacher.parameters(), lr=0.1, momentum=0.9)
for step in range(24):
    rows = torch.randint(0, 256, (64,))
    loss = nn.functional.cross_entropy(teacher(data[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 7:
        print("teacher", step, loss.item())

# %%
student = nn.Linear(24, 4)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
teacher.eval()
for step in range(24):
    rows = torch.randint(0, 256, (64,))
    with torch.no_grad():
        wanted = teacher(data[rows]).softmax(1)
    loss = nn.functional.kl_div(student(data[rows]).log_softmax(1), wanted, reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 7:
        print("student", step, loss.item())
