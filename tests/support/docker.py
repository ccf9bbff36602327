"""Whether Docker can run an image here."""

from __future__ import annotations

import shutil
import subprocess


def why_docker_cannot_run(image: str) -> str | None:
    """Return None if the engine answers and has the image, else the reason; pulls the image, which may take minutes."""
    if not shutil.which("docker"):
        return "there is no docker command"
    if not _succeeds("docker", "info", timeout=20):
        return "the Docker engine does not answer"
    if _succeeds("docker", "image", "inspect", image, timeout=20) or _succeeds("docker", "pull", image, timeout=600):
        return None
    return f"Docker has no image {image} and cannot pull it"


def _succeeds(*command: str, timeout: float) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=timeout).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def docker(*arguments: str, timeout: float = 120) -> str:
    """Run a command of the Docker client and return what it printed.

    Raises:
        AssertionError: It did not end with 0.
    """
    done = subprocess.run(
        ["docker", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout
