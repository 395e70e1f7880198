"""The VM runtime: workloads as QEMU guests, one process per guest under the agent's keeper.

command_line  a guest as the arguments of QEMU (pure)
seed          the cloud-init seed image of a guest
images        base images, overlays and blank disks, made with qemu-img
acceleration  whether KVM works here: found out by booting something
monitor       what QEMU is told while the guest runs (QMP)
"""
