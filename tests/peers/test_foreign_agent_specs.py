"""What an agent of the published contract is sent for a spec of each kind, field by field.

The client sends every published field of the control plane's contract. The agent gets what a Persys scheduler would
send, and what that one loses on the way as well: lists stay lists, and a mount point is no device.
"""

from __future__ import annotations

import base64

import pytest

from tests.peers.contract import agent, control

pytestmark = pytest.mark.integration

YAML = "services:\n  web:\n    image: nginx\n"
VOLUME = {
    "name": "data",
    "driver": "local",
    "size_gb": 5,
    "access_mode": "ReadWriteOnce",
    "fs_type": "ext4",
    "mount_path": "/data",
    "read_only": True,
    "retain_policy": "Retain",
}

CONTAINER = (
    control.WorkloadSpec(
        type="container",
        resources=control.ResourceRequirements(cpu_millicores=250, memory_mb=64, disk_gb=1),
        container=control.ContainerSpec(
            image="nginx:latest",
            command=["nginx", "-g", "daemon off;"],
            env={"MODE": "test"},
            volumes=[control.VolumeMount(host_path="/srv", container_path="/usr/share", read_only=True)],
            ports=[control.Port(host_port=8080, container_port=80, protocol="tcp")],
            restart_policy="on-failure",
            privileged=True,
            managed_volumes=[control.ManagedVolumeSpec(**VOLUME)],
        ),
        metadata={"owner": "e2e"},
    ),
    agent.WorkloadSpec(
        container=agent.ContainerSpec(
            image="nginx:latest",
            command=["nginx", "-g", "daemon off;"],
            env={"MODE": "test"},
            volumes=[agent.VolumeMount(host_path="/srv", container_path="/usr/share", read_only=True)],
            ports=[agent.PortMapping(host_port=8080, container_port=80, protocol="tcp")],
            resources=agent.ResourceLimits(cpu_shares=250, memory_bytes=64 << 20),
            restart_policy=agent.RestartPolicy(policy="on-failure"),
            managed_volumes=[agent.ManagedVolumeSpec(**VOLUME)],
        )
    ),
)
COMPOSE = (
    control.WorkloadSpec(
        type="compose",
        compose=control.ComposeSpec(source_type="inline", inline_yaml=YAML, env={"MODE": "test"}),
    ),
    agent.WorkloadSpec(
        compose=agent.ComposeSpec(
            project_name="web", compose_yaml=base64.b64encode(YAML.encode()).decode(), env={"MODE": "test"}
        )
    ),
)
CLOUD_INIT = {"user_data": "#cloud-config\n", "meta_data": "a: 1", "network_config": "b: 2", "vendor_data": "c: 3"}
VM = (
    control.WorkloadSpec(
        type="vm",
        vm=control.VMSpec(
            vcpus=2,
            memory_mb=512,
            disks=[
                control.DiskConfig(pool_name="default", size_gb=5, mount_point="vda"),
                control.DiskConfig(pool_name="default", mount_point="/data"),
            ],
            networks=[
                control.NetworkConfig(bridge="default", dhcp=True),
                control.NetworkConfig(bridge="br0", static_ip="10.0.0.5"),
            ],
            cloud_init=control.CloudInitConfig(**CLOUD_INIT),
            os_image="ubuntu-22.04",
            managed_volumes=[control.ManagedVolumeSpec(**VOLUME)],
        ),
        metadata={"owner": "e2e"},
    ),
    agent.WorkloadSpec(
        vm=agent.VMSpec(
            name="web",
            vcpus=2,
            memory_mb=512,
            disks=[
                agent.DiskConfig(
                    path="/var/lib/libvirt/images/web-vda.qcow2",
                    device="vda",
                    format="qcow2",
                    size_gb=5,
                    type="disk",
                    boot=True,
                ),
                agent.DiskConfig(
                    path="/var/lib/libvirt/images/web-vdb.qcow2", device="vdb", format="qcow2", size_gb=20, type="disk"
                ),
            ],
            networks=[
                agent.NetworkConfig(network="default"),
                agent.NetworkConfig(network="br0", ip_address="10.0.0.5"),
            ],
            cloud_init="#cloud-config\n",
            metadata={"owner": "e2e"},
            cloud_init_config=agent.CloudInitConfig(**CLOUD_INIT),
            managed_volumes=[agent.ManagedVolumeSpec(**VOLUME)],
        )
    ),
)


@pytest.mark.parametrize(("sent", "received"), [CONTAINER, COMPOSE, VM], ids=["container", "compose", "vm"])
async def test_the_agent_gets_the_whole_spec_in_the_form_that_it_reads(stage, sent, received):
    foreign = await stage.agent("n1")
    assert (await stage.client.apply("web", sent, revision="rev-1")).success
    view = await stage.client.wait_status("web", "Running")
    assert view.type == sent.type
    (command,) = foreign.calls_of("ApplyWorkload", "web")
    command.DiscardUnknownFields()  # what is ours and not in its contract
    assert command == agent.ApplyWorkloadRequest(
        id="web",
        type=getattr(agent, f"WORKLOAD_TYPE_{sent.type.upper()}"),
        revision_id="rev-1",
        desired_state=agent.DESIRED_STATE_RUNNING,
        spec=received,
    )
