# SPDX-License-Identifier: Apache-2.0
# Copyright the Casulo authors
"""Bringing an image into the store: verified, unpacked, on disk for good; against plain `tar`.

The image is made here: about 300 MB in five layers, with files of the sizes that a distribution has.
A second one has 100,000 small files.
"""

from __future__ import annotations

import gzip
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.report import Report, Value, quantile
from casulo.images.ids import Ids
from casulo.images.settings import ImagesSettings
from casulo.images.store import ImageStore
from casulo.runtimes.local import host
from support.images import ImageParts, LayoutWriter, archive, folder, member

LAYERS = 5
LAYER_BYTES = 60_000_000
FILES_PER_FOLDER = 40
SMALL_FILES = 100_000
RUNS = 3
LOOK_UPS = 200
_POOL = 1 << 20


async def measure() -> Report:
    with tempfile.TemporaryDirectory(prefix="casulo-bench-") as place:
        base = Path(place)
        layers = [archive(*_layer(number)) for number in range(LAYERS)]
        layout = LayoutWriter(base / "layout")
        layout.add("gzip", ImageParts(layers))
        layout.add("plain", ImageParts(layers, compress=False))
        layout.add("small", ImageParts([archive(*_small_files())]))
        size = sum(map(len, layers)) / 1e6
        figures: dict[str, Value] = {"image_mb": round(size, 1), "layers": LAYERS, "runs": RUNS}
        for tag in ("gzip", "plain"):
            seconds = [await _pull(base / f"{tag}{n}", layout.reference(tag)) for n in range(RUNS)]
            figures[f"{tag}_seconds"] = round(quantile(seconds, 0.5), 2)
            figures[f"{tag}_mb_per_s"] = round(size / quantile(seconds, 0.5), 1)
        figures["tar_gzip_mb_per_s"] = round(size / _tar(base, layers), 1)
        small = [await _pull(base / f"small{n}", layout.reference("small")) for n in range(RUNS)]
        figures["small_files"] = SMALL_FILES
        figures["small_files_seconds"] = round(quantile(small, 0.5), 2)
        figures["local_look_up_ms"] = round(
            1000 * await _look_up(base / "gzip0", layout.reference("gzip")), 3
        )
    return Report("unpack", figures, {"ids": _ids().name, "sync": "syncfs after each layer"})


def _ids() -> Ids:
    return Ids(host.ID_BASE) if host.is_privileged() else Ids(None)


async def _pull(place: Path, name: str) -> float:
    store = ImageStore(place, ImagesSettings(), _ids())
    await store.open()
    begun = time.perf_counter()
    await store.pull(name)
    return time.perf_counter() - begun


async def _look_up(place: Path, name: str) -> float:
    """Seconds that a start spends on an image that is here."""
    store = ImageStore(place, ImagesSettings(), _ids())
    await store.open()
    seconds = []
    for _ in range(LOOK_UPS):
        begun = time.perf_counter()
        await store.resolve(name, holder="benchmark")
        seconds.append(time.perf_counter() - begun)
    return quantile(seconds, 0.5)


def _tar(base: Path, layers: list[bytes]) -> float:
    """Seconds of the same layers through `tar -xz`, one after the other, without any check, with a sync."""
    packed = []
    for number, layer in enumerate(layers):
        path = base / f"{number}.tar.gz"
        path.write_bytes(gzip.compress(layer, 1))
        packed.append(path)
    begun = time.perf_counter()
    for path in packed:
        target = path.with_suffix(".out")
        target.mkdir()
        subprocess.run(["tar", "-C", target, "-xzf", path], check=True)
        subprocess.run(["sync", "-f", target], check=True)
    return time.perf_counter() - begun


def _layer(number: int) -> Iterator[bytes]:
    """Most files are small, most bytes are in few large ones; the text compresses about three times."""
    dice = random.Random(number)
    content = _content(dice)
    written, count = 0, 0
    while written < LAYER_BYTES:
        if count % FILES_PER_FOLDER == 0:
            yield folder(f"usr/share/layer{number}/folder{count // FILES_PER_FOLDER}")
        size = min(int(dice.lognormvariate(8, 2)), 8_000_000)
        yield member(f"usr/share/layer{number}/folder{count // FILES_PER_FOLDER}/file{count}", content(size))
        written, count = written + size + 1024, count + 1


def _small_files() -> Iterator[bytes]:
    dice = random.Random(99)
    content = _content(dice)
    for number in range(SMALL_FILES):
        yield member(f"srv/{number // 100}/{number}.txt", content(dice.randint(10, 900)))


def _content(dice: random.Random) -> Callable[[int], bytes]:
    words = [dice.randbytes(dice.randint(3, 9)) for _ in range(3000)]
    pool = b" ".join(dice.choice(words) for _ in range(_POOL // 5))

    def some(size: int) -> bytes:
        start = dice.randrange(len(pool) // 2)
        return (pool[start:] + pool * (size // len(pool) + 1))[:size]

    return some
