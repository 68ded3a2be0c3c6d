#!/usr/bin/env python3
"""Checks a filled launchd agent of stepmail: `plist.py FILE HOME`.

launchd takes what it does not know for nothing and `plutil -lint` looks at the XML alone, so a misspelt key, or a text
where a number belongs, is a job that never runs, or runs with another umask. This table is all that may stand there: any
key beside it is a fault, and since every value is named, no secret has a place.
"""

import plistlib
import sys


def table(home):
    """Every key, with the type and the value it must have."""
    data = f"{home}/Library/Application Support/stepmail"
    log = f"{home}/Library/Logs/stepmail/stepmail.log"
    program = [f"{home}/.cargo/bin/stepmail", "run", "--quiet"]
    return {
        "Label": "stepmail.hourly",
        "ProgramArguments": [*program, "--config", f"{data}/stepmail.toml"],
        "WorkingDirectory": data,
        "StandardOutPath": log,
        "StandardErrorPath": log,
        "StartCalendarInterval": {"Minute": 7},
        "RunAtLoad": True,
        "ProcessType": "Background",
        "Umask": 0o077,
        "ExitTimeOut": 90,
        "ThrottleInterval": 60,
    }


def faults(found, wanted, name=""):
    """What is not as it must be, type and value. `True` is no 1 here, and "63" no 63."""
    if type(found) is not type(wanted):
        yield f"{name}: {found!r} is {type(found).__name__}, and {type(wanted).__name__} belongs there"
    elif isinstance(wanted, dict):
        for key in found.keys() - wanted.keys():
            yield f"{name}{key}: is not a key that belongs there"
        for key in wanted.keys() - found.keys():
            yield f"{name}{key}: is missing"
        for key in found.keys() & wanted.keys():
            yield from faults(found[key], wanted[key], f"{name}{key}")
    elif isinstance(wanted, list) and len(found) == len(wanted):
        for place, (one, other) in enumerate(zip(found, wanted)):
            yield from faults(one, other, f"{name}[{place}]")
    elif found != wanted:
        yield f"{name}: {found!r}, and {wanted!r} belongs there"


def main(path, home):
    if not home.startswith("/"):
        return [f"{home}: every path begins with it, and must be absolute"]
    try:
        with open(path, "rb") as file:
            found = plistlib.load(file)
    except Exception as error:  # plistlib lets through what its parser raises
        return [f"{path}: {error}"]
    return sorted(faults(found, table(home)))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: plist.py FILE HOME")
    if wrong := main(*sys.argv[1:]):
        sys.exit("\n".join(wrong))
