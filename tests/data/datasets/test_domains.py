"""Settings of data sets whose domains are folders of classes."""

import pytest
import yaml
from fakes import domains

from pfl_lightning.data import ImageFolders
from pfl_lightning.settings.shipped_files import configs

SETS = {
    "pacs": (domains.write_pacs, domains.PACS, domains.KINDS, 4),
    "office_caltech": (domains.write_office_caltech, domains.OFFICE, domains.OBJECTS, 3),
    "domainnet": (domains.write_domainnet, domains.DOMAINS, domains.TEN, 3),
}


@pytest.mark.parametrize("name", SETS)
def test_a_domain_is_a_client_and_grey_sketches_have_the_channels_of_the_others(name, tmp_path):
    write, clients, classes, count = SETS[name]
    write(tmp_path)
    options = yaml.safe_load(configs()[f"data/{name}"].read_text())["data"]["init_args"]
    data = ImageFolders(str(tmp_path), options["size"], classes=options.get("classes"))
    data.setup()
    assert {*data.client_names} == {*clients}
    assert data.class_names == tuple(sorted(classes))
    assert data.input_shape == (3, 64, 64)
    samples, _ = data.load()
    pairs = samples.users * len(classes) + samples.targets
    assert pairs.bincount().tolist() == [count] * len(clients) * len(classes)
