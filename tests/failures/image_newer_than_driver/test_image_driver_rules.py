"""The rules agree with the facts of images and drivers, which `check` reads as well."""

from __future__ import annotations

from matrix.ground.cases.machine_requirements import Fit, fitting
from matrix.ground.catalog import loading
from matrix.ground.catalog.failure import Expectation

CATALOG = loading.load()
FAILURE = CATALOG.failure("image-newer-than-driver")


def test_rules_agree_with_the_facts() -> None:
    """A driver that is too old breaks; one for which the image is built does not."""
    compared = 0
    for image in CATALOG.containers:
        for driver in CATALOG.drivers:
            fitted = fitting(CATALOG, image, driver.branch)
            broken = FAILURE.expectation(image.contents().with_({"driver": driver.branch})) is Expectation.BROKEN
            if fitted.fit is Fit.TOO_OLD:
                assert broken, (image.id, driver.branch, fitted.reason)
                compared += 1
            elif fitted.fit is Fit.NATIVE and "is built for" in fitted.reason:
                assert not broken, (image.id, driver.branch, fitted.reason)
                compared += 1
    assert compared > 300
