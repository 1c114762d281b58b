"""This machine's pip configuration inside of a build: neither passwords nor paths stay in the image."""

from __future__ import annotations

from pathlib import Path

from matrix.provision.pip_inside import PipInside, pip_inside


def settings_for(**options: str) -> PipInside:
    """Return the settings for these options on a machine where only /gone is missing."""
    return pip_inside(
        {name.replace("_", "-"): value for name, value in options.items()}, lambda path: "gone" not in str(path)
    )


def test_without_a_configuration_there_are_no_settings() -> None:
    assert settings_for() == PipInside()


def test_folders_are_mounted_and_urls_kept() -> None:
    inside = settings_for(index_url="https://me:token@mirror/simple", find_links="/wheels\nhttps://mirror/flat")
    assert inside.folders == {Path("/wheels"): "/run/megatrix/0"}
    assert inside.text == (
        "[global]\nindex-url = https://me:token@mirror/simple\nfind-links = /run/megatrix/0 https://mirror/flat\n"
    )


def test_a_file_index_is_mounted_with_its_siblings() -> None:
    """Its pages refer to ../../files/x.whl."""
    inside = settings_for(extra_index_url="file:///mirror/simple file:///other/simple/")
    assert inside.folders == {Path("/mirror"): "/run/megatrix/0", Path("/other"): "/run/megatrix/1"}
    assert "extra-index-url = file:///run/megatrix/0/simple file:///run/megatrix/1/simple\n" in inside.text


def test_one_folder_is_mounted_once() -> None:
    inside = settings_for(index_url="file:///mirror/simple", find_links="file:///mirror/links.html file:///mirror")
    assert inside.folders == {Path("/mirror"): "/run/megatrix/0"}
    assert "find-links = /run/megatrix/0/links.html /run/megatrix/0\n" in inside.text


def test_missing_folders_are_left_out() -> None:
    inside = settings_for(find_links="/gone /wheels", index_url="file:///gone/simple")
    assert inside.text == "[global]\nfind-links = /run/megatrix/0\n"
    assert inside.folders == {Path("/wheels"): "/run/megatrix/0"}


def test_certificates_are_secrets() -> None:
    inside = settings_for(
        cert="/ca.pem", client_cert="/me.pem", timeout="180", retries="9", trusted_host="a\nb", no_index="1"
    )
    assert inside.files == {"cert": Path("/ca.pem"), "client-cert": Path("/me.pem")}
    assert set(inside.text.splitlines()[1:]) == {
        "cert = /run/secrets/cert",
        "client-cert = /run/secrets/client-cert",
        "timeout = 180",
        "retries = 9",
        "trusted-host = a b",
        "no-index = 1",
    }


def test_options_that_restrict_packages_are_dropped() -> None:
    assert settings_for(constraint="/c.txt", user="true", target="/x", pre="1") == PipInside()
