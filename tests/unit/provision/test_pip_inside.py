"""pip's configuration of this machine, as it is inside of a build: no password and no path of ours stays there."""

from __future__ import annotations

from pathlib import Path

from matrix.provision.pip_inside import PipInside, pip_inside


def told(**options: str) -> PipInside:
    """What these options come to on a machine where only /gone is missing."""
    return pip_inside(
        {name.replace("_", "-"): value for name, value in options.items()}, lambda path: "gone" not in str(path)
    )


def test_without_a_configuration_there_is_nothing_to_hand_in() -> None:
    assert told() == PipInside()


def test_an_index_is_named_as_it_is_and_folders_as_they_are_inside() -> None:
    inside = told(index_url="https://me:token@mirror/simple", find_links="/wheels\nhttps://mirror/flat")
    assert inside.folders == {Path("/wheels"): "/run/megatrix/0"}
    assert inside.text == (
        "[global]\nindex-url = https://me:token@mirror/simple\nfind-links = /run/megatrix/0 https://mirror/flat\n"
    )


def test_a_file_index_comes_with_what_is_beside_it() -> None:
    """Its pages lead to ../../files/x.whl."""
    inside = told(extra_index_url="file:///mirror/simple file:///other/simple/")
    assert inside.folders == {Path("/mirror"): "/run/megatrix/0", Path("/other"): "/run/megatrix/1"}
    assert "extra-index-url = file:///run/megatrix/0/simple file:///run/megatrix/1/simple\n" in inside.text


def test_one_folder_is_mounted_once() -> None:
    inside = told(index_url="file:///mirror/simple", find_links="file:///mirror/links.html file:///mirror")
    assert inside.folders == {Path("/mirror"): "/run/megatrix/0"}
    assert "find-links = /run/megatrix/0/links.html /run/megatrix/0\n" in inside.text


def test_what_is_not_there_is_left_out() -> None:
    inside = told(find_links="/gone /wheels", index_url="file:///gone/simple")
    assert inside.text == "[global]\nfind-links = /run/megatrix/0\n"
    assert inside.folders == {Path("/wheels"): "/run/megatrix/0"}


def test_certificates_are_secrets_and_the_rest_is_as_it_is() -> None:
    inside = told(cert="/ca.pem", client_cert="/me.pem", timeout="180", retries="9", trusted_host="a\nb", no_index="1")
    assert inside.files == {"cert": Path("/ca.pem"), "client-cert": Path("/me.pem")}
    assert set(inside.text.splitlines()[1:]) == {
        "cert = /run/secrets/cert",
        "client-cert = /run/secrets/client-cert",
        "timeout = 180",
        "retries = 9",
        "trusted-host = a b",
        "no-index = 1",
    }


def test_what_narrows_the_choice_of_packages_stays_here() -> None:
    assert told(constraint="/c.txt", user="true", target="/x", pre="1") == PipInside()
