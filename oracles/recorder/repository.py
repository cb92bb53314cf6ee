"""What git says about the tree that a recording comes from."""

from __future__ import annotations

import subprocess
from pathlib import Path


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def commit(root: Path) -> str:
    """The commit that is checked out, or "" where there is none."""
    return (_git(root, "rev-parse", "HEAD") or "").strip()


def changes(root: Path) -> list[str] | None:
    """Paths that differ from the commit, recorded cases left out; None outside a repository."""
    listed = _git(root, "status", "--porcelain", "--untracked-files=all", "--", ":/", ":(exclude,glob)*/cases/**")
    return None if listed is None or not commit(root) else [line[3:] for line in listed.splitlines()]


def is_dirty(root: Path) -> bool:
    """Whether a recording made now could not be made again from a commit."""
    return changes(root) != []
