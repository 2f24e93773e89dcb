"""A sealed file: a manifest and arrays under one checksum, which is verified before any parsing.

    MAGIC | length of the manifest, 8 bytes | manifest, JSON | arrays | SHA-256 of all before

The magic bytes hold the version of the format. The manifest lists name, dtype and shape of every
array, and the bytes of the arrays follow in this order. A changed bit anywhere changes the checksum
or is a changed bit of the checksum; both are `Damaged`. Nothing here runs on a device: of JAX it
takes the names of the short floats only.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

MAGIC = b"pullback checkpoint 2\n"
LENGTH = 8
DIGEST = hashlib.sha256().digest_size
ARRAYS = "stored"
"""The field of the manifest that lists the arrays."""


class Damaged(Exception):
    """A file does not contain what was written."""


def seal(
    manifest: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> Iterator[bytes | memoryview]:
    """Yield the content of a file piece by piece, so that large arrays are not copied."""
    listed = [[name, x.dtype.name, list(x.shape)] for name, x in arrays.items()]
    text = json.dumps({**manifest, ARRAYS: listed}).encode()
    checksum = hashlib.sha256()
    head = MAGIC + len(text).to_bytes(LENGTH, "little") + text
    checksum.update(head)
    yield head
    for x in arrays.values():
        content = as_bytes(x)
        checksum.update(content)
        yield content
    yield checksum.digest()


def unseal(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return manifest and arrays of a file's content; raises `Damaged` for any other content."""
    if not content.startswith(MAGIC):
        raise Damaged(f"it does not begin with {MAGIC.decode().strip()!r}")
    body = memoryview(content)[:-DIGEST]
    if len(body) < len(MAGIC) + LENGTH:
        raise Damaged(f"it is cut off after {len(content)} bytes")
    if hashlib.sha256(body).digest() != content[-DIGEST:]:
        raise Damaged("its checksum does not match: it is cut off or changed")
    # From here on the content is what somebody sealed, which may still be no checkpoint.
    start = len(MAGIC) + LENGTH
    end = start + int.from_bytes(body[len(MAGIC) : start], "little")
    if end > len(body):
        raise Damaged(f"its manifest of {end - start} bytes is longer than the file")
    try:
        manifest = json.loads(bytes(body[start:end]))
        listed = [
            (str(name), jnp.dtype(dtype), tuple(map(int, shape)))
            for name, dtype, shape in manifest.pop(ARRAYS)
        ]
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise Damaged(f"its manifest is not one ({error!r})") from error
    return manifest, _arrays(body[end:], listed)


def _arrays(
    content: memoryview, listed: list[tuple[str, np.dtype, tuple[int, ...]]]
) -> dict[str, np.ndarray]:
    """Return the listed arrays, which share the memory of the content."""
    # Python's integers do not overflow: a header of 1e15 numbers is compared, never allocated.
    sizes = [dtype.itemsize * math.prod(shape) for _, dtype, shape in listed]
    if any(dtype.hasobject or min(shape, default=0) < 0 for _, dtype, shape in listed):
        raise Damaged("its manifest lists what is no array of numbers")
    if sum(sizes) != len(content):
        raise Damaged(f"its manifest lists {sum(sizes)} bytes of arrays, there are {len(content)}")
    arrays = {}
    place = 0
    for (name, dtype, shape), size in zip(listed, sizes, strict=True):
        part = np.frombuffer(content[place : place + size], np.uint8)
        arrays[name] = part.view(dtype).reshape(shape)
        place += size
    if len(arrays) != len(listed):
        raise Damaged("its manifest lists an array twice")
    return arrays


def as_bytes(x: np.ndarray) -> bytes | memoryview:
    """Return the bytes of an array in C order, without a copy where that is possible."""
    flat = np.ascontiguousarray(x).reshape(-1)
    return flat.view(np.uint8).data
