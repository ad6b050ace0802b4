"""The present environment as a file that pip or conda reads."""

from __future__ import annotations

from dataclasses import replace

import yaml
from hypothesis import given
from hypothesis import strategies as st

from flatout.installing import freeze
from flatout.knowledge.compat import pytorch
from flatout.nouns.listing import CondaPackage, InstalledPackage, Listing
from installing import grammar

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LISTING = Listing(
    python="3.11.7",
    system="Linux",
    machine="x86_64",
    packages=(
        InstalledPackage("torch", "2.9.1+cu128", "pip"),
        InstalledPackage("torchvision", "0.24.1+cu128", "pip"),
        InstalledPackage("numpy", "2.3.4", "pip"),
        InstalledPackage("pip", "25.3", "pip"),
        InstalledPackage("apex", "0.1+gabc123", "pip"),
        InstalledPackage(
            "mine", "0.1", "pip", "file:///home/user/mine", editable=True, folder=True
        ),
        InstalledPackage(
            "theirs", "1.0", "uv", "https://example.org/t.git", vcs="git", commit=COMMIT
        ),
        InstalledPackage("wheel-of", "2.0", "pip", "https://example.org/w-2.0-py3-none-any.whl"),
        InstalledPackage("broken", "1.0.dev-x?", "pip"),
    ),
)


def test_requirements() -> None:
    text = freeze.text(LISTING)
    found = {item.name: item for item in grammar.requirements(text)}
    assert str(found["torch"].specifier) == "==2.9.1+cu128"
    assert str(found["numpy"].specifier) == "==2.3.4"
    assert found["theirs"].url == f"git+https://example.org/t.git@{COMMIT}"
    assert found["wheel-of"].url == "https://example.org/w-2.0-py3-none-any.whl"
    assert found.keys() == {"torch", "torchvision", "numpy", "theirs", "wheel-of"}
    assert text.count(f"--extra-index-url {pytorch.index_url('cu128')}\n") == 1
    assert "# Python 3.11.7 on Linux x86_64" in text


def test_what_cannot_be_had_elsewhere_is_told() -> None:
    remarks = [line for line in freeze.text(LISTING).splitlines() if line.startswith("#")]
    assert any("mine 0.1" in line and "editable" in line for line in remarks)
    assert any("apex 0.1+gabc123" in line for line in remarks)
    assert any("broken" in line for line in remarks)


def test_no_index_where_none_is_needed() -> None:
    plain = replace(LISTING, packages=LISTING.packages[2:4])
    assert "index-url" not in freeze.text(plain)


def test_passwords_and_tokens_stay_here() -> None:
    url = "https://me:secret@example.org/private-1.0.tar.gz"
    channel = "https://me:secret@conda.example.org/t/tk-secret/team/linux-64"
    packages = (InstalledPackage("private", "1.0", "pip", url),)
    conda = (CondaPackage("tool", "1.0", "0", channel),)
    for listing in (LISTING, replace(LISTING, conda=conda)):
        text = freeze.text(replace(listing, packages=packages))
        assert "secret" not in text and "example.org/private-1.0.tar.gz" in text
    assert yaml.safe_load(text)["channels"] == ["team", "nodefaults"]


def test_a_conda_environment() -> None:
    forge = "https://conda.example.org/conda-forge/linux-64"
    listing = replace(
        LISTING,
        packages=(InstalledPackage("numpy", "2.3.4", "conda"), *LISTING.packages),
        conda=(
            CondaPackage("python", "3.11.7", "hab00c5b_1_cpython", forge),
            CondaPackage("numpy", "2.3.4", "py311h71ddf71_0", forge),
            CondaPackage(
                "_openmp_mutex", "5.1", "1_gnu", "https://repo.example.org/pkgs/main/linux-64"
            ),
        ),
    )
    assert freeze.file_name(listing) == "environment.yml"
    environment = yaml.safe_load(freeze.text(listing))
    assert environment["channels"] == ["conda-forge", "defaults"]
    assert "python=3.11.7=hab00c5b_1_cpython" in environment["dependencies"]
    pip = environment["dependencies"][-1]["pip"]
    assert pip[0].startswith("--extra-index-url ")
    names = {item.name for item in grammar.requirements("\n".join(pip))}
    assert names == {"torch", "torchvision", "theirs", "wheel-of"}  # numpy is conda's


@given(
    st.lists(
        st.builds(
            InstalledPackage,
            name=st.text(min_size=1, max_size=12),
            version=st.text(min_size=1, max_size=12),
            url=st.none() | st.text(max_size=20),
            editable=st.booleans(),
            folder=st.booleans(),
        ),
        max_size=4,
    )
)
def test_whatever_is_installed_pip_can_read_the_file(packages: list[InstalledPackage]) -> None:
    grammar.requirements(freeze.text(replace(LISTING, packages=tuple(packages))))
