from pathlib import Path

import pytest
from reproduction.srpfl import figures


@pytest.mark.parametrize("name", figures.FIGURES)
@pytest.mark.parametrize("scale", ["small", "full"])
def test_every_panel_names_files_that_exist(name, scale):
    figure = figures.FIGURES[name]
    for part in figure.small if scale == "small" else figure.panels:
        options = figures.fit_options(figure, part, scale, Path("files"))
        files = [option.removeprefix("--config=") for option in options if option.startswith("--config=")]
        assert len(files) == 2
        assert all(Path(file).is_file() for file in files)
        assert f"--data.root=files/{part.data}" in options
