"""The built programs, run to their end: for tests of one process."""
import os
import pathlib
import subprocess

SOURCE = pathlib.Path(os.environ["KERN_SOURCE_DIR"])
BIN = pathlib.Path(os.environ["KERN_BUILD_DIR"]) / "bin"
CONFIG = SOURCE / "k3/configs/k3-nano.json"


def tool(name, *args, code=0):
    done = subprocess.run([BIN / name, *map(str, args)], text=True, capture_output=True)
    if done.returncode != code:
        raise AssertionError(f"{name} exits {done.returncode}, expected {code}: {done.stderr}")
    return done
