"""The VM runtime: workloads as QEMU guests, one process per guest under the agent's keeper.

runtime       implements `Runtime`
command_line  a guest as the arguments of QEMU (pure)
cloud_init    the parts of a guest's cloud-init seed (pure)
seed          the seed as an image
disks         overlays, blank disks, CD images, managed volumes
images        base images: found, fetched, checked, cached
qemu_img      runs qemu-img
programs      what has to be installed
acceleration  whether KVM works here: found out by booting something
monitor       what QEMU is asked while the guest runs (QMP)
guest_agent   what the guest itself is asked
boot          the signs by which a guest has booted
failures      why QEMU did not start, from what it printed
"""
