"""What a processor is called, and what it is, from its block of /proc/cpuinfo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.noun import Noun, noun

_X86_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "HygonGenuine": "Hygon", "CentaurHauls": "Centaur"}

_ARM_VENDORS = {
    0x41: "ARM", 0x42: "Broadcom", 0x43: "Cavium", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x50: "APM",
    0x51: "Qualcomm", 0x53: "Samsung", 0x56: "Marvell", 0x61: "Apple", 0x6D: "Microsoft", 0x70: "Phytium",
    0xC0: "Ampere",
}  # fmt: skip

_ARM_PARTS = {
    (0x41, 0xD03): "Cortex-A53", (0x41, 0xD05): "Cortex-A55", (0x41, 0xD07): "Cortex-A57", (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD09): "Cortex-A73", (0x41, 0xD0A): "Cortex-A75", (0x41, 0xD0B): "Cortex-A76", (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD0D): "Cortex-A77", (0x41, 0xD40): "Neoverse-V1", (0x41, 0xD41): "Cortex-A78", (0x41, 0xD44): "Cortex-X1",
    (0x41, 0xD46): "Cortex-A510", (0x41, 0xD47): "Cortex-A710", (0x41, 0xD48): "Cortex-X2",
    (0x41, 0xD49): "Neoverse-N2", (0x41, 0xD4D): "Cortex-A715", (0x41, 0xD4E): "Cortex-X3",
    (0x41, 0xD4F): "Neoverse-V2", (0x46, 0x001): "A64FX", (0x48, 0xD01): "Kunpeng-920",
}  # fmt: skip
"""For people only: parts that are not listed are shown by their number."""


@noun
class Silicon(Noun):
    """`name` for people; `vendor`, `arch` and `model` are part of the machine's key."""

    name: str
    vendor: str
    arch: str
    model: str


def describe(first: Mapping[str, str], blocks: Sequence[Mapping[str, str]], machine: str) -> Silicon:
    """The silicon of `first`; `blocks` are all kinds of core, in any order. `machine`: the kernel's word, or ""."""
    if "CPU implementer" in first:
        return _arm(first, blocks, machine)
    name = " ".join((first.get("model name") or first.get("Model Name") or first.get("cpu") or "").split())
    if "vendor_id" in first and "cpu family" in first:
        vendor = _X86_VENDORS.get(first["vendor_id"], first["vendor_id"])
        arch = "x86_64" if "lm" in first.get("flags", "").split() else machine or "i686"
        numbers = (("family", "cpu family"), ("model", "model"), ("stepping", "stepping"))
        model = " ".join(f"{word} {first[field]}" for word, field in numbers if first.get(field))
        return Silicon(name if name not in ("", "unknown") else f"{vendor} {model}", vendor, arch, model)
    model = first.get("uarch") or first.get("cpu") or name  # RISC-V and POWER give no numbers
    return Silicon(name or model or machine or "unknown CPU", first.get("vendor_id", ""), machine or "unknown", model)


def _arm(first: Mapping[str, str], blocks: Sequence[Mapping[str, str]], machine: str) -> Silicon:
    kinds = sorted({_arm_numbers(block) for block in blocks if "CPU implementer" in block} or {_arm_numbers(first)})
    vendor = _ARM_VENDORS.get(kinds[0][0], f"implementer {kinds[0][0]:#x}")
    names = [_ARM_PARTS.get((who, part), f"{part:#05x}") for who, part, _, _ in kinds]
    model = " + ".join(
        f"implementer {who:#04x} part {part:#05x} variant {variant:#x} revision {revision}"
        for who, part, variant, revision in kinds
    )
    is_64_bit = "asimd" in first.get("Features", "").split() or first.get("CPU architecture") in ("8", "AArch64")
    arch = machine if machine.startswith(("aarch64", "arm")) else "aarch64" if is_64_bit else "arm"
    told = " ".join(first.get("model name", "").split())
    return Silicon(told or f"{vendor} {' + '.join(dict.fromkeys(names))}", vendor, arch, model)


def _arm_numbers(block: Mapping[str, str]) -> tuple[int, int, int, int]:
    """(implementer, part, variant, revision)."""

    def value(name: str) -> int:
        try:
            return int(block.get(name, "0"), 0)
        except ValueError:
            return 0

    return value("CPU implementer"), value("CPU part"), value("CPU variant"), value("CPU revision")
