"""The compiling process: `python -m autotune.kernels.triton.server`, driven by JSON lines on stdin and stdout.

    {"launch": …, "arch": "sm_90", "seconds": 60, "memory_bytes": …, "keep": false}  →  the facts (`facts.CompileFacts`)

It loads Triton once and forks for each request: a compiler that hangs, eats memory or crashes takes the fork with it.
`launch` is `Launch.specialized()`. With `keep`, the code goes into Triton's own cache, where a launch finds it.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from typing import Any

from autotune.kernels.triton.running import OPTIONS, function
from autotune.kernels.triton.targets import target_of


def main() -> None:
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a compiler prints stays out of the protocol
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line)), allow_nan=False), file=protocol, flush=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compiles in a fork of this process, within the request's limits."""
    begin = time.monotonic()
    try:
        function(request["launch"]["kernel"])  # loaded here once, not in each fork
        facts = _in_a_fork(request)
    except Exception as error:
        facts = {"problem": _told(error)}
    return {**facts, "seconds": time.monotonic() - begin, "warps": request["launch"]["num_warps"], **_identity(request)}


def _identity(request: dict[str, Any]) -> dict[str, str]:
    import triton

    return {"arch": request["arch"], "compiler": f"triton {triton.__version__}"}


def _in_a_fork(request: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        said = os.path.join(scratch, "facts.json")
        child = os.fork()
        if child == 0:
            _compile_and_exit(request, scratch, said)
        status = _wait(child, request["seconds"])
        if status is None:
            return {"problem": f"compiling took more than {request['seconds']:g} s"}
        try:
            with open(said, encoding="utf-8") as file:
                return dict(json.load(file))
        except (OSError, ValueError):
            code = os.waitstatus_to_exitcode(status)
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return {"problem": f"the compiler {how} (it may take {request['memory_bytes'] >> 20} MiB of memory)"}


def _wait(child: int, seconds: float) -> int | None:
    """The child's exit status; None when it had to be stopped, with all that it started."""
    deadline, pause = time.monotonic() + seconds, 0.005
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)


def _compile_and_exit(request: dict[str, Any], scratch: str, said: str) -> None:
    """Never returns: what a fork of a Python process does on the way out is not wanted twice."""
    try:
        os.setpgid(0, 0)
        limit = request["memory_bytes"]
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        if not request["keep"]:
            os.environ["TRITON_CACHE_DIR"] = scratch
        try:
            facts = compile_now(request["launch"], request["arch"], scratch)
        except BaseException as error:
            facts = {"problem": _told(error)}
        with open(said, "w", encoding="utf-8") as file:
            json.dump(facts, file)
    finally:
        os._exit(0)


def compile_now(launch: dict[str, Any], arch: str, scratch: str) -> dict[str, Any]:
    """Compiles in this process and returns the facts. Raises whatever the compiler raises."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target = target_of(arch)
    kernel = function(launch["kernel"])
    source = ASTSource(kernel, *_arguments(kernel.arg_names, launch))
    options = {name: launch[name] for name in ("num_warps", "num_stages")} | OPTIONS
    made = triton.compile(source, target=GPUTarget(target.backend, target.chip, target.warp_size), options=options)
    facts: dict[str, Any] = {
        "shared_bytes": int(made.metadata.shared),
        "tensor_memory": int(getattr(made.metadata, "tmem_size", 0) or 0),
    }
    if target.backend == "cuda":
        facts |= _cubin_facts(made.asm["cubin"], scratch)
    else:
        facts |= _amd_facts(made.asm["amdgcn"]) | {"code_bytes": _text_bytes(made.asm["hsaco"])}
    return facts


def _arguments(names: list[str], launch: dict[str, Any]) -> tuple[dict[str, str], dict[Any, Any], dict[Any, Any]]:
    """(signature, constants, attributes) as Triton's launcher makes them from a launch's values.

    Attributes that say nothing are there too: Triton's cache tells them from missing ones.
    """
    signature: dict[str, str] = {}
    constants: dict[Any, Any] = {}
    attributes: dict[Any, Any] = {}
    for index, name in enumerate(names):
        attributes[(index,)] = []
        if name in launch["constants"]:
            signature[name], constants[(index,)] = "constexpr", launch["constants"][name]
        elif launch["scalars"].get(name) == "1":
            signature[name], constants[(index,)] = "constexpr", 1
        else:
            known = launch["pointers"].get(name)
            kind, _, multiple = (f"*{known}:16" if known else launch["scalars"][name]).partition(":")
            signature[name] = kind
            if multiple:
                attributes[(index,)] = [["tt.divisibility", 16]]
            elif kind == "fp32":
                del attributes[(index,)]
    return signature, constants, attributes


def _cubin_facts(cubin: bytes, scratch: str) -> dict[str, int]:
    """From the tool that Triton brings; registers and stack stay 0 without it."""
    import triton

    path = os.path.join(scratch, "kernel.cubin")
    with open(path, "wb") as file:
        file.write(cubin)
    facts = {"code_bytes": _text_bytes(cubin)}
    try:
        tool = triton.knobs.nvidia.cuobjdump.path
        shown = subprocess.run([tool, "--dump-resource-usage", path], capture_output=True, text=True, check=True)
    except Exception:  # not brought, not executable, or of another format
        return facts
    for name, word in (("registers", "REG"), ("stack_bytes", "STACK")):
        found = re.search(rf"\b{word}:(\d+)", shown.stdout)
        facts[name] = int(found.group(1)) if found else 0
    return facts


def _amd_facts(assembly: str) -> dict[str, int]:
    """From the metadata at the end of the assembly; ordinary and accumulation registers are one file."""

    def note(name: str) -> int:
        found = re.search(rf"^\s*\.{name}:\s*(\d+)", assembly, re.MULTILINE)
        return int(found.group(1)) if found else 0

    return {"registers": note("vgpr_count"), "stack_bytes": note("private_segment_fixed_size")}


def _text_bytes(elf: bytes) -> int:
    """Size of the sections .text… of a 64-bit little-endian ELF file, which both vendors' binaries are."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQ", elf, table + index * size) for index in range(count)]
    words = sections[names][4]
    return sum(section[5] for section in sections if elf[words + section[0] :].startswith(b".text"))


def _told(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1][:300]}" if lines else type(error).__name__


if __name__ == "__main__":
    main()
