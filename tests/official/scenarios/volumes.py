# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Host paths and named volumes with the official models, as the official suite uses them."""

from __future__ import annotations

from opensandbox.exceptions import SandboxApiException
from opensandbox.models.sandboxes import OSSFS, PVC, Host, Volume

from scenarios.context import Context


async def host_path(context: Context) -> None:
    def mount(read_only: bool) -> Volume:
        return Volume(
            name="host", host=Host(path=context.folder), mountPath="/mnt/host-data", readOnly=read_only
        )

    async with context.sandbox(volumes=[mount(False)]) as sandbox:
        said = await sandbox.commands.run("cat /mnt/host-data/marker.txt")
        assert said.logs.stdout[0].text == "from the host"
        said = await sandbox.commands.run(
            "echo written-from-sandbox > /mnt/host-data/out && test -d /mnt/host-data"
        )
        assert said.error is None
    async with context.sandbox(volumes=[mount(True)]) as sandbox:
        said = await sandbox.commands.run("cat /mnt/host-data/out")
        assert said.logs.stdout[0].text == "written-from-sandbox"
        assert (await sandbox.commands.run("touch /mnt/host-data/no")).error is not None


async def named_volume(context: Context) -> None:
    whole = Volume(name="data", pvc=PVC(claimName="official-data"), mountPath="/mnt/pvc")
    part = Volume(
        name="data", pvc=PVC(claimName="official-data"), mountPath="/mnt/train", subPath="datasets/train"
    )
    async with context.sandbox(volumes=[whole]) as sandbox:
        script = (
            "cd /mnt/pvc;mkdir -p datasets/train;echo root > marker.txt; echo sub > datasets/train/marker.txt"
        )
        assert (await sandbox.commands.run(script)).error is None
    async with context.sandbox(volumes=[part]) as sandbox:
        said = await sandbox.commands.run("cat /mnt/train/marker.txt")
        assert said.logs.stdout[0].text == "sub"
        assert (await sandbox.commands.run("ls /mnt/train/datasets")).error is not None
        assert (await sandbox.commands.run("touch /mnt/train/new")).error is None
    whole_read_only = Volume(
        name="data", pvc=PVC(claimName="official-data"), mountPath="/mnt/pvc", readOnly=True
    )
    async with context.sandbox(volumes=[whole_read_only]) as sandbox:
        assert (await sandbox.commands.run("touch /mnt/pvc/no")).error is not None
    with context.sync_sandbox(volumes=[part]) as sandbox:
        assert sandbox.commands.run("ls /mnt/train/new").error is None


async def refusals(context: Context) -> None:
    secret = {"accessKeyId": "id", "accessKeySecret": "hush"}
    bucket = OSSFS(bucket="bucket", endpoint="oss.example.com", **secret)
    for code, volume in (
        ("VOLUME::HOST_PATH_NOT_ALLOWED", Volume(name="v", host=Host(path="/etc"), mountPath="/mnt")),
        ("VOLUME::INVALID_MOUNT_PATH", Volume(name="v", host=Host(path=context.folder), mountPath="/proc")),
        (
            "VOLUME::PVC_NOT_FOUND",
            Volume(name="v", pvc=PVC(claimName="none", createIfNotExists=False), mountPath="/mnt"),
        ),
        ("VOLUME::UNSUPPORTED_BACKEND", Volume(name="v", ossfs=bucket, mountPath="/mnt")),
    ):
        try:
            async with context.sandbox(volumes=[volume]):
                raise AssertionError(f"{code}: was granted")
        except SandboxApiException as error:
            assert error.status_code == 400, error
            assert error.error.code == code, error.error
            assert "hush" not in str(error)
