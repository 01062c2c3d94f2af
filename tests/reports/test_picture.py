"""The pictures of the documentation are what the published pages make, shape by shape."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from reports.picture import LEGEND, STYLE, drawn, panels, renew
from reports.publish import DOCS, PUBLISHED

PAGE = (PUBLISHED / "spike_mid_answer.html").read_text(encoding="utf-8")
IMAGES = sorted((DOCS / "images").glob("*.svg"))


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.stem)
def test_a_picture_is_what_its_page_makes(image: Path) -> None:
    page = (PUBLISHED / f"{image.stem}.html").read_text(encoding="utf-8")
    assert image.read_text(encoding="utf-8") == drawn(page, image.stem)


def test_the_picture_of_the_readme_is_there() -> None:
    assert "spike_mid_answer" in {image.stem for image in IMAGES}


def test_every_policy_has_a_panel_with_its_shapes() -> None:
    """Names and kills are those of the run, each memory has a budget, and each policy's tenant a lane."""
    found = panels(PAGE)
    assert [panel.name for panel in found] == ["hold", "always_small", "restart", "molt"]
    assert [len(panel.kills) for panel in found] == [1, 0, 0, 0]
    for panel in found:
        assert "budget" in {style for style, _ in panel.memory}
        assert len(panel.lanes) == 1
        assert panel.sizes
        assert panel.times == found[0].times


def test_a_picture_is_well_formed_and_every_shape_has_a_colour() -> None:
    root = ET.fromstring(drawn(PAGE, "a < b"))
    styles = {word for node in root.iter() for word in node.get("class", "").split()}
    unstyled = {word for word in styles if f".{word} " not in STYLE}
    assert unstyled <= {"area", "loading", "decoding"}  # coloured by the rung that they also name
    assert {style for style, _ in LEGEND} <= styles


def test_pictures_are_drawn_again_from_what_is_published(tmp_path: Path) -> None:
    (tmp_path / "spike_mid_answer.svg").write_text("old", encoding="utf-8")
    renew(PUBLISHED, tmp_path)
    assert (tmp_path / "spike_mid_answer.svg").read_text(encoding="utf-8") == drawn(PAGE, "spike_mid_answer")
