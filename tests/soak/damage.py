"""Ways to damage a file: bytes that changed, numbers and words that somebody put in, and things that are no files at all."""

from __future__ import annotations

import os
import re
from pathlib import Path
from random import Random

NOT_A_FILE = 0.03  # this share becomes a folder, a pipe, a device or a loop of links, or is missing
WORD = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\"[^\"\n]{0,80}\"|'[^'\n]{0,80}'|true|false|null")
WORDS = [
    *(b"0", b"-1", b"1", b"0.5", b"2147483648", b"-9223372036854775809", b"9" * 25, b"9" * 5000, b"1e999", b"1e-320"),
    *(b"NaN", b"-Infinity", b"null", b"true", b'""', b"[]", b"{}", b"[" * 3000, b'{"a": 1}', b"[1, [2]]", b"=1+1"),
    *(b'"soak_canary:make"', b'"/dev/zero"', b'"../../etc/passwd"', b'"\\ud800"', b'"\x1b[31m"', b"'<f8'", b"'|O'"),
    *(b"\xff\xfe", b"\0", b"\xe2\x80\xae"),
]
NUMBERS = [bytes(4), b"\xff" * 4, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\1\0\0\0", bytes(8), b"\xff" * 7 + b"\x7f"]
BLOCKS = {
    "removed": lambda block, random: b"",
    "repeated": lambda block, random: block * random.randint(2, 5),
    "inserted": lambda block, random: random.randbytes(len(block)) + block,
    "noise": lambda block, random: random.randbytes(len(block)),
    "filled": lambda block, random: random.choice([b"\0", b"\xff", b" ", b"9", b"\n"]) * len(block),
    "bit": lambda block, random: bytes([block[0] ^ 1 << random.randrange(8)]) + block[1:] if block else b"\0",
    "byte": lambda block, random: random.randbytes(1) + block[1:],
    "number": lambda block, random: (number := random.choice(NUMBERS)) + block[len(number) :],
}
NO_FILES = {
    "missing": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "pipe": lambda path: os.mkfifo(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
}


def damage(path: Path, random: Random) -> str:
    """Damage the file, and say how."""
    if random.random() < NOT_A_FILE:
        way = random.choice(list(NO_FILES))
        path.unlink()
        NO_FILES[way](path)
        return way
    content, ways = path.read_bytes(), []
    for _ in range(1 if random.random() < 0.7 else random.randint(2, 4)):
        way = random.choice([*BLOCKS, "cut", "replaced", "word", "word", "word"])
        ways.append(way)
        if way == "replaced":
            content = random.choice(
                [b"", b"\n", b"{}", b"[]", b"PK\x03\x04", random.randbytes(random.randint(1, 3000))]
            )
        elif way == "word" and (found := [*WORD.finditer(content[:200_000])]):
            start, end = random.choice(found).span()
            same_length = str(random.randrange(10 ** min(end - start, 18))).encode().ljust(end - start)
            content = content[:start] + random.choice([same_length, random.choice(WORDS)]) + content[end:]
        else:
            start = random.randrange(random.choice([200, len(content) + 1]))  # often where headers are
            end = start + int(2 ** random.uniform(0, 12))
            new = BLOCKS.get(way, BLOCKS["bit"])(content[start:end], random)
            content = content[:start] + (b"" if way == "cut" else new + content[end:])
    path.write_bytes(content)
    return ", ".join(ways)
