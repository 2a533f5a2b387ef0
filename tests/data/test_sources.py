"""Named data sets: where they are looked for, how they get there, and what is said when they do not."""

import functools
import hashlib
import http.server
import io
import re
import sys
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pooch
import pytest

from selfens.config import Config
from selfens.data import cifar_svhn, sources
from selfens.errors import DataError
from selfens.training.loop import train
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
    official.cifar(tmp_path / "source", "cifar10", "python2")
    archive = folder / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "source" / "cifar-10-batches-py", "cifar-10-batches-py")
    publish(monkeypatch, "cifar10", f"{address}/{archive.name}", archive.read_bytes(), "cifar-10-batches-py")
    return archive


def publish(monkeypatch, name, url, content, target, *others):
    entry = cifar_svhn.Published(url, hashlib.md5(content).hexdigest(), target)
    monkeypatch.setitem(cifar_svhn.PUBLISHED, name, [*others, entry])


def test_the_table_and_the_sources_agree():
    assert set(sources.SOURCES) == {"digits", *cifar_svhn.PUBLISHED}
    assert all(len(entry.md5) == 32 for entries in cifar_svhn.PUBLISHED.values() for entry in entries)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(
        DataError, match="there is no data set 'cifar1'; did you mean 'cifar10'.*must be of an .npz file"
    ):
        sources.load("cifar1")


def test_a_path_to_an_npz_file_is_loaded(tmp_path):
    np.savez(tmp_path / "mine.npz", x_train=np.zeros((4, 2)), y_train=[0, 1, -1, 1])
    for path in (tmp_path / "mine.npz", str(tmp_path / "mine.npz")):
        assert sources.load(path).num_rows == 4


def test_the_folder_is_the_argument_else_the_variable_else_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / "cache" / name)
    assert sources.data_folder() == tmp_path / "cache" / "selfens" / "data"
    monkeypatch.setenv("SELFENS_DATA", str(tmp_path / "variable"))
    assert sources.data_folder() == tmp_path / "variable"
    assert sources.data_folder(tmp_path / "argument") == tmp_path / "argument"


def test_digits_have_500_test_rows_50_of_each_class():
    data = sources.load("digits")
    assert data.inputs.shape == (1297, 1, 8, 8)
    assert data.test_inputs.shape == (500, 1, 8, 8)
    assert (data.inputs.dtype, data.labels.dtype) == (np.float32, np.int64)
    assert (data.inputs.min(), data.inputs.max()) == (0, 1)
    assert np.bincount(data.test_labels).tolist() == [50] * 10
    assert (data.name, data.classes) == ("digits", tuple("0123456789"))


def test_digits_are_split_by_the_split_seed_alone():
    first, again, other = (sources.load("digits", split_seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    halves = [np.concatenate([data.inputs, data.test_inputs]).reshape(1797, 64) for data in (first, other)]
    assert np.array_equal(*(rows[np.lexsort(rows.T)] for rows in halves)), "each split holds every row once"


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_on_disk_needs_no_download(tmp_path, official, name):
    official.cifar(tmp_path, name, "python2")
    data = sources.load(name, data_dir=tmp_path, offline=True)
    assert (data.name, data.inputs.dtype, data.input_shape) == (name, np.uint8, (3, 32, 32))
    assert data.num_classes == (10 if name == "cifar10" else 100)
    assert len(data.test_inputs) == len(data.test_labels) == 3


def test_svhn_on_disk_needs_no_download(tmp_path, official, monkeypatch):
    official.svhn(tmp_path)
    monkeypatch.setenv("SELFENS_DATA", str(tmp_path))
    assert sources.load("svhn", offline=True).num_rows == 3


@pytest.mark.parametrize("by", ["argument", "variable"])
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("cifar10", "there is no cifar-10-batches-py in .*kriz/cifar-10-python.tar.gz"),
        ("svhn", "there is no svhn/train_32x32.mat in .*http://ufldl.stanford.edu/housenumbers/train_32x32"),
    ],
)
def test_offline_the_files_and_their_place_are_named(tmp_path, monkeypatch, name, what, by):
    if by == "variable":
        monkeypatch.setenv("SELFENS_OFFLINE", "1")
    with pytest.raises(DataError, match=f"(?=.*downloading is switched off).*{what}"):
        sources.load(name, data_dir=tmp_path, offline=by == "argument")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["", "0"])
def test_a_download_that_fails_leaves_nothing_and_says_what_to_do(tmp_path, monkeypatch, value):
    def fail(*_arguments, **_options):
        raise OSError("no route\nto host")

    monkeypatch.setenv("SELFENS_OFFLINE", value)
    monkeypatch.setattr("pooch.retrieve", fail)
    with pytest.raises(DataError, match=r"the download failed \(no route to host\); unpack it there"):
        sources.load("cifar10", data_dir=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_without_pooch_the_files_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match="train_32x32.mat .*the download failed .*pooch"):
        sources.load("svhn", data_dir=tmp_path)


def test_an_interrupted_download_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(_downloader, _url, output_file, _pooch):
        Path(output_file).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sources.load("cifar10", data_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("progress", [False, True])
def test_cifar_is_downloaded_checked_and_unpacked_once(
    tmp_path, official, published_cifar10, progress, caplog, monkeypatch
):
    monkeypatch.setattr(pooch.get_logger(), "handlers", [caplog.handler])
    target = tmp_path / "data" / "here"
    first = sources.load("cifar10", data_dir=target, progress=progress)
    np.testing.assert_array_equal(first.inputs, official.expected([f"data_batch_{i}" for i in range(1, 6)])[0])
    assert [path.name for path in target.iterdir()] == ["cifar-10-batches-py"]
    published_cifar10.unlink()
    assert sources.load("cifar10", data_dir=target).fingerprint() == first.fingerprint()
    assert ("cifar-10-python.tar.gz" in caplog.text) == progress


def test_another_file_than_the_published_one_is_not_kept(tmp_path, published_cifar10):
    published_cifar10.write_bytes(published_cifar10.read_bytes() + b"x")
    with pytest.raises(DataError, match=r"the download failed \(MD5 hash of downloaded file"):
        sources.load("cifar10", data_dir=tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_file_that_is_not_on_the_server_is_a_failed_download(tmp_path, published_cifar10):
    published_cifar10.unlink()
    with pytest.raises(DataError, match=r"the download failed \(404"):
        sources.load("cifar10", data_dir=tmp_path / "data")


def test_only_the_missing_file_of_svhn_is_downloaded(tmp_path, official, web, monkeypatch):
    folder, address = web
    official.svhn(tmp_path / "data")
    content = (tmp_path / "data" / "test_32x32.mat").rename(folder / "test_32x32.mat").read_bytes()
    train = cifar_svhn.PUBLISHED["svhn"][0]
    publish(monkeypatch, "svhn", f"{address}/test_32x32.mat", content, "svhn/test_32x32.mat", train)
    data = sources.load("svhn", data_dir=tmp_path / "data")
    np.testing.assert_array_equal(data.test_inputs, official.expected(["test_32x32.mat"])[0])
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
        sources.load("cifar100", data_dir=tmp_path / "data")
    assert not list(tmp_path.rglob("escaped"))


def test_two_processes_may_download_at_once(tmp_path, official, published_cifar10, monkeypatch):
    target = tmp_path / "data"
    fetch = pooch.retrieve

    def other_is_faster(*arguments, **options):
        official.cifar(target, "cifar10", "python2")
        return fetch(*arguments, **options)

    monkeypatch.setattr(pooch, "retrieve", other_is_faster)
    assert sources.load("cifar10", data_dir=target).num_rows == 15
    assert [path.name for path in target.iterdir()] == ["cifar-10-batches-py"]


QUICK = ["network.name=mlp", "network.width=2", "schedule.epochs=1", "data.preprocess=none", "training.threads=1"]


def written(official, folder, name):
    """Files of a data set that are not the official ones."""
    _ = official.svhn(folder) if name == "svhn" else official.cifar(folder, name, "python2")
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn"])
def test_files_that_are_not_the_official_ones_are_mentioned_once(tmp_path, official, monkeypatch, name):
    files = written(official, tmp_path / "data", name)
    assert len(files) == {"cifar10": 7, "cifar100": 3, "svhn": 2}[name]
    sentence = rf"^the official MD5 checksums of {name} do not fit {len(files)} of its files, the first .*; results may"
    assert re.search(sentence, sources.doubt(name, tmp_path / "data"))
    settings = Config().with_overrides([f"data.name={name}", f"data.folder={tmp_path}/data", *QUICK])
    seen = []

    class Watch(Progress):
        def warn(self, message):
            seen.append(message)

    data = sources.load(name, data_dir=tmp_path / "data")
    monkeypatch.setattr(sources, "from_config", lambda *_, **__: data.with_labels(np.arange(len(data.labels)) % 2))
    monkeypatch.setattr("selfens.data.labels._check_every_class", lambda *_: None)
    train(settings, tmp_path / "run", progress=Watch())
    assert len([message for message in seen if re.search(sentence, message)]) == 1
    train(settings, tmp_path / "given", progress=Watch(), dataset=sources.from_config())
    assert len([message for message in seen if re.search(sentence, message)]) == 1


@pytest.mark.parametrize("name", ["cifar10", "svhn"])
def test_official_files_are_not_mentioned(tmp_path, official, monkeypatch, name):
    files = written(official, tmp_path / "data", name)
    sums = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in files}
    monkeypatch.setitem(cifar_svhn.CHECKSUMS, "cifar10", sums)
    known = [replace(part, md5=sums.get(Path(part.target).name, "")) for part in cifar_svhn.PUBLISHED[name]]
    monkeypatch.setitem(cifar_svhn.PUBLISHED, name, known)
    assert sources.doubt(name, tmp_path / "data") == ""
    files[0].write_bytes(files[0].read_bytes() + b"\0")
    assert f"1 of its files, the first {files[0]}" in sources.doubt(name, tmp_path / "data")
    assert sources.doubt("digits") == sources.doubt("a.npz") == ""
