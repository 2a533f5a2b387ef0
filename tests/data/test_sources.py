"""Public data sets: where they are looked for, how they are downloaded, and what a failed download says."""

import functools
import hashlib
import http.server
import io
import re
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pooch
import pytest
from support import encoded

from selfens import train
from selfens.config import Config
from selfens.data import official_files, sources
from selfens.data.official_files import PUBLISHED
from selfens.data.sources import PUBLIC, options_for
from selfens.data.sources.official import TITLES, data_folder
from selfens.errors import ConfigError, DataError
from selfens.training.progress import Progress


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in ("SELFENS_DATA", "SELFENS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_arguments):
        pass


@pytest.fixture
def web(tmp_path):
    """A folder, and the address under which its files are served."""
    folder = tmp_path / "web"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def published_cifar10(web, official, tmp_path, monkeypatch):
    """CIFAR-10 on the local server, entered in the table with its checksum."""
    folder, address = web
    official.cifar(tmp_path / "source", "cifar10")
    archive = folder / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "source" / "cifar-10-batches-py", "cifar-10-batches-py")
    publish(monkeypatch, "cifar10", f"{address}/{archive.name}", archive.read_bytes(), "cifar-10-batches-py")
    return archive


def publish(monkeypatch, name, url, content, target, *others):
    entry = official_files.Published(url, hashlib.md5(content).hexdigest(), target)
    monkeypatch.setitem(PUBLISHED, name, [*others, entry])


def load(name, folder=None, **more):
    return sources.load(options_for(name, folder=folder and str(folder)), **more)


# Names and folders


def test_the_tables_of_public_data_sets_agree():
    assert {*PUBLIC} == {"digits", *PUBLISHED}
    assert {*PUBLISHED} == {*TITLES} == {*official_files.CIFAR, "svhn"}
    assert all(len(entry.md5) == 32 for entries in PUBLISHED.values() for entry in entries)


def test_an_unknown_name_gets_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photographs").mkdir()
    words = "neither a public data set nor an .npz file, a folder or a table; did you mean"
    for given, expected in (("cifar1", "cifar10"), ("photograps", "photographs/")):
        with pytest.raises(ConfigError, match=f"^'{given}' is {words} '{expected}'.* Known: digits, cifar10,"):
            options_for(given)
    with pytest.raises(
        ConfigError, match="there is no data at some/where; expected an .npz file, a folder, or a table"
    ):
        options_for("some/where")


def test_the_folder_is_the_argument_else_the_variable_else_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache" / name)
    assert data_folder() == tmp_path / "cache" / "selfens" / "data"
    monkeypatch.setenv("SELFENS_DATA", str(tmp_path / "variable"))
    assert data_folder() == tmp_path / "variable"
    assert data_folder(tmp_path / "argument") == tmp_path / "argument"


def test_digits_have_50_test_rows_of_each_class_by_the_seed_alone():
    first, again, other = (load("digits", seed=seed) for seed in (0, 0, 1))
    assert (first.name, first.classes) == ("digits", tuple("0123456789"))
    assert (first.raw.shape, first.raw.dtype, first.num_train) == ((1797, 1, 8, 8), np.float32, 1297)
    assert (first.raw[:].min(), first.raw[:].max()) == (0, 1)
    assert np.bincount(first.test_labels).tolist() == [50] * 10
    assert encoded(first).fingerprint == encoded(again).fingerprint != encoded(other).fingerprint
    rows = [data.raw[:].reshape(1797, 64) for data in (first, other)]
    assert np.array_equal(*(found[np.lexsort(found.T)] for found in rows)), "each split holds every row once"


@pytest.mark.parametrize("name", PUBLISHED)
def test_files_on_disk_need_no_download(tmp_path, official, monkeypatch, name):
    official.write(tmp_path, name)
    monkeypatch.setenv("SELFENS_OFFLINE", "1")
    monkeypatch.setenv("SELFENS_DATA", str(tmp_path))
    data = load(name)
    assert (data.name, data.raw.dtype, data.raw.shape[1:]) == (name, np.uint8, (3, 32, 32))
    assert data.num_classes == (100 if name == "cifar100" else 10)
    assert len(data.test_rows) == len(data.test_labels) == 3


# Downloads


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("cifar10", "there is no cifar-10-batches-py in .*; unpack .*kriz/cifar-10-python.tar.gz there"),
        (
            "svhn",
            "there is no svhn/train_32x32.mat in .*; put http://ufldl.stanford.edu/housenumbers/train",
        ),
    ],
)
def test_offline_the_files_and_their_place_are_named(tmp_path, monkeypatch, name, what):
    monkeypatch.setenv("SELFENS_OFFLINE", "1")
    with pytest.raises(DataError, match=f"(?=.*downloading is switched off).*{what}"):
        load(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["", "0"])
def test_a_download_that_fails_leaves_nothing_and_says_what_to_do(tmp_path, monkeypatch, value):
    def fail(*_arguments, **_options):
        raise OSError("no route\nto host")

    monkeypatch.setenv("SELFENS_OFFLINE", value)
    monkeypatch.setattr("pooch.retrieve", fail)
    with pytest.raises(DataError, match=r"the download failed \(no route to host\); unpack http"):
        load("cifar10", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_without_pooch_the_files_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match="train_32x32.mat .*the download failed .*pooch"):
        load("svhn", tmp_path)


def test_an_interrupted_download_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(_downloader, _url, output_file, _pooch):
        Path(output_file).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load("cifar10", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("progress", [False, True])
def test_cifar_is_downloaded_checked_and_unpacked_once(
    tmp_path, official, published_cifar10, progress, caplog, monkeypatch
):
    monkeypatch.setattr(pooch.get_logger(), "handlers", [caplog.handler])
    target = tmp_path / "data" / "here"
    first = load("cifar10", target, progress=progress)
    expected = official.expected([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"])[0]
    np.testing.assert_array_equal(first.raw[:], expected)
    assert [path.name for path in target.iterdir()] == ["cifar-10-batches-py"]
    published_cifar10.unlink()
    np.testing.assert_array_equal(load("cifar10", target).raw[:], expected)
    assert ("cifar-10-python.tar.gz" in caplog.text) == progress


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda archive: archive.write_bytes(archive.read_bytes() + b"x"), "MD5 hash of downloaded file"),
        (Path.unlink, "404"),
    ],
)
def test_another_file_than_the_published_one_is_not_kept(tmp_path, published_cifar10, change, reason):
    change(published_cifar10)
    with pytest.raises(DataError, match=rf"the download failed \({reason}"):
        load("cifar10", tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_only_the_missing_file_of_svhn_is_downloaded(tmp_path, official, web, monkeypatch):
    folder, address = web
    official.svhn(tmp_path / "data")
    content = (tmp_path / "data" / "test_32x32.mat").rename(folder / "test_32x32.mat").read_bytes()
    publish(monkeypatch, "svhn", f"{address}/test_32x32.mat", content, "svhn/test_32x32.mat", PUBLISHED["svhn"][0])
    data = load("svhn", tmp_path / "data")
    np.testing.assert_array_equal(data.raw[data.test_rows], official.expected(["test_32x32.mat"])[0])
    assert (tmp_path / "data" / "svhn" / "test_32x32.mat").is_file()


def test_an_archive_that_writes_elsewhere_is_refused(tmp_path, web, monkeypatch):
    folder, address = web
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../../../escaped"))
    (folder / "cifar-100-python.tar.gz").write_bytes(packed.getvalue())
    url = f"{address}/cifar-100-python.tar.gz"
    publish(monkeypatch, "cifar100", url, packed.getvalue(), "cifar-100-python")
    with pytest.raises(DataError, match="the download failed"):
        load("cifar100", tmp_path / "data")
    assert not list(tmp_path.rglob("escaped"))


def test_two_processes_may_download_at_once(tmp_path, official, published_cifar10, monkeypatch):
    target, fetch = tmp_path / "data", pooch.retrieve

    def other_is_faster(*arguments, **options):
        official.cifar(target, "cifar10")
        return fetch(*arguments, **options)

    monkeypatch.setattr(pooch, "retrieve", other_is_faster)
    assert load("cifar10", target).num_train == 15
    assert [path.name for path in target.iterdir()] == ["cifar-10-batches-py"]


# Files that are not the official ones


def written(official, folder, name):
    """Unofficial files, each with every class."""
    official.rows = 100 if name == "cifar100" else 10
    for file in (*official_files.CIFAR["cifar10"].train, "test_batch", "train", "test"):
        official.written[file] = official.batch(file, 10)[0], np.arange(official.rows)
    for file in ("train_32x32.mat", "test_32x32.mat"):
        official.written[file] = official.batch(file, 10)[0], np.arange(official.rows) % 10
    official.write(folder, name)
    return [path for path in folder.rglob("*") if path.is_file()]


def warning(name, folder=None):
    return sources.build(options_for(name, folder=folder and str(folder))).warning()


def warnings(path, source, dataset=None):
    """Return the warnings of a short training."""
    seen = []

    class Watch(Progress):
        def warn(self, message):
            seen.append(message)

    words = ["network.name=mlp", "network.width=2", "schedule.epochs=1", "training.threads=1", "training.device=cpu"]
    train(Config(source=source).with_overrides(words), path, progress=Watch(), dataset=dataset)
    return seen


@pytest.mark.parametrize(("name", "count"), [("cifar10", 7), ("cifar100", 3), ("svhn", 2)])
def test_files_that_are_not_the_official_ones_are_mentioned_once(tmp_path, official, name, count):
    folder = tmp_path / "data"
    assert len(written(official, folder, name)) == count
    sentence = (
        rf"^{count} {TITLES[name]} files do not match the published MD5 checksums \(the first: {folder}.*\); results"
    )
    assert re.search(sentence, warning(name, folder))
    found = warnings(tmp_path / "run", options_for(name, folder=str(folder)))
    found += warnings(tmp_path / "given", options_for(name), dataset=load(name, folder))
    assert len([message for message in found if re.search(sentence, message)]) == 1


def test_the_files_of_extra_rows_are_looked_at_in_the_same_folder(tmp_path, official):
    for name in ("cifar10", "svhn"):
        written(official, tmp_path / "data", name)
    found = warnings(tmp_path / "run", options_for("cifar10", folder=str(tmp_path / "data"), extra="svhn"))
    assert [message.partition(" files do not")[0] for message in found] == ["7 CIFAR-10", "2 SVHN"]


@pytest.mark.parametrize("name", ["cifar10", "svhn"])
def test_official_files_are_not_mentioned(tmp_path, official, monkeypatch, name):
    files = written(official, tmp_path, name)
    sums = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in files}
    monkeypatch.setitem(official_files.CHECKSUMS, "cifar10", sums)
    known = [part._replace(md5=sums.get(Path(part.target).name, "")) for part in PUBLISHED[name]]
    monkeypatch.setitem(PUBLISHED, name, known)
    assert warning(name, tmp_path) == warning("digits") == ""
    files[0].write_bytes(files[0].read_bytes() + b"\0")
    expected = f"1 {TITLES[name]} file does not match the published MD5 checksums (the first: {files[0]})"
    assert expected in warning(name, tmp_path)
