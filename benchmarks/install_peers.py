"""Put the peers of peers.txt into benchmarks/.peers: python benchmarks/install_peers.py

A folder of its own, git-ignored by a file inside it, so that no extra of the project and no environment knows of them.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from peers import FOLDER, peer, peer_versions

WANTED = Path(__file__).parent / "peers.txt"


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(FOLDER), "--requirement"]
    subprocess.run([*command, str(WANTED)], check=True)
    (FOLDER / ".gitignore").write_text("*\n")
    for module in ("laplace", "trak.projectors"):
        peer(module)
    print("\n".join(f"{name} {version}" for name, version in peer_versions().items()))


if __name__ == "__main__":
    main()
