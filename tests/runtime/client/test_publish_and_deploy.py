"""From a folder on disk to a deployment that serves, as a person does it."""

import re
import time

from catalog.models import ModelVersion, Upload
from kernel import actors, scope
from ledger.models import AuditEvent
from quotas.amount import Amount, Kind
from quotas.services import set_quota
from runtime.client import tus
from runtime.client.commands.placement import need_lines
from tests.build import catalog, onnx
from tests.build.machines import GIB


def versions():
    with scope.all_tenants():
        return list(ModelVersion.objects.order_by("id"))


def test_a_folder_becomes_a_ready_version(signed_in, shell, folder):
    said = shell("upload", folder, "--model", "demo", "--description", "the first", "-o", "json")
    assert (said.json["state"], said.json["number"], said.json["description"]) == ("ready", 1, "the first")
    assert "training_args.bin" in said.err
    assert {file["path"] for file in said.json["files"]} == set(catalog.huggingface())
    assert [row["name"] for row in shell("models", "-o", "json").json] == ["demo"]
    assert shell("versions", "demo", "-o", "json").json[0]["number"] == 1


def test_the_audit_says_that_it_came_by_the_command_line(signed_in, shell, folder):
    shell("upload", folder)
    assert set(AuditEvent.objects.filter(subject_kind="model").values_list("way", flat=True)) == {"cli"}
    assert shell("models", "-o", "json").json[0]["name"] == "small-model"


def test_a_second_upload_is_the_next_version(signed_in, shell, folder):
    shell("upload", folder, "-m", "demo")
    assert shell("upload", folder, "-m", "demo", "-o", "json").json["number"] == 2


def test_a_gguf_file_is_uploaded_alone(signed_in, shell, tmp_path):
    file = tmp_path / "tiny.gguf"
    file.write_bytes(catalog.gguf())
    assert shell("upload", file, "-o", "json").json["format"] == "gguf"


def test_an_onnx_file_comes_with_its_data_and_tells_its_inputs(signed_in, shell, tmp_path):
    external = {"location": "sight.onnx.data", "length": 128}
    weights = [onnx.tensor("w1", [4, 8], external=external), onnx.tensor("w2", [8, 2])]
    (tmp_path / "sight.onnx").write_bytes(onnx.model(onnx.perceptron(weights)))
    (tmp_path / "sight.onnx.data").write_bytes(bytes(128))
    (tmp_path / "other.onnx.data").write_bytes(b"not of this model")
    said = shell("upload", tmp_path / "sight.onnx")
    assert re.search(r"input +x FP32 \[batch, 4\]", said.out)
    (version,) = versions()
    size = (tmp_path / "sight.onnx").stat().st_size
    assert (version.state, version.format, version.size_bytes) == ("ready", "onnx", size + 128)
    for words in (
        ("deploy", "sight:1", "-e", "sight", "--no-wait"), ("deploy", "sight:1", "--anyway", "--no-wait"),
        ("deploy", "sight:1", "--replicas", "0"), ("fit", "sight:1"),
    ):  # fmt: skip
        refused = shell(*words, want=1).err  # 6 is what one can wait for
        assert "No engine here runs ONNX models" in refused
        assert "--anyway" not in refused
        assert "It would fit if" not in refused


def test_a_folder_with_both_sends_what_is_served(signed_in, shell, folder):
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(onnx.model())
    said = shell("upload", folder, "-m", "demo")
    assert "onnx/model.onnx" in said.err
    assert versions()[0].format == "huggingface"


def test_a_rejected_version_says_why(signed_in, shell, folder):
    (folder / "tokenizer.json").unlink()
    said = shell("upload", folder, "-m", "demo", want=6)
    assert "MissingTokenizer" in said.err
    assert versions()[0].state == "rejected"


def test_an_interrupted_upload_goes_on_with_the_same_version(signed_in, shell, folder, monkeypatch):
    monkeypatch.setattr(tus, "PIECE_BYTES", 1000)
    sent = []
    whole = tus.Uploader._send_piece

    def interrupted(self, url, file, offset, job):
        if len(sent) == 3:
            raise KeyboardInterrupt
        sent.append(url)
        return whole(self, url, file, offset, job)

    monkeypatch.setattr(tus.Uploader, "_send_piece", interrupted)
    shell("upload", folder, "-m", "demo", want=130)
    with scope.all_tenants():
        begun = set(Upload.objects.filter(state="open").values_list("id", flat=True))
    monkeypatch.setattr(tus.Uploader, "_send_piece", whole)
    said = shell("upload", folder, "-m", "demo", "-o", "json")
    assert "Going on with demo:1" in said.err
    assert (said.json["state"], len(versions())) == ("ready", 1)
    with scope.all_tenants():
        assert set(Upload.objects.filter(id__in=begun).values_list("state", flat=True)) <= {"complete"}


def test_what_is_no_model_is_refused_before_anything_is_sent(signed_in, shell, tmp_path):
    empty, text = tmp_path / "empty", tmp_path / "a.txt"
    empty.mkdir()
    text.write_text("x")
    assert "does not exist" in shell("upload", tmp_path / "nothing", want=2).err
    assert "no .gguf or .onnx" in shell("upload", text, want=2).err
    assert "no .safetensors, .gguf or .onnx" in shell("upload", empty, want=2).err
    assert versions() == []


def test_deploy_waits_until_it_serves_and_the_deployment_can_be_steered(signed_in, shell, folder):
    signed_in.worker.join_agent(name="mill-1")
    shell("upload", folder, "-m", "demo")
    said = shell("deploy", "demo", "--endpoint", "chat", "--wait", "-o", "json")
    assert (said.json["ready_replicas"], said.json["state"]) == (1, "ready")
    assert "Fits" in said.err
    ident = said.json["id"]
    listed = shell("status", "-o", "json").json
    assert [(row["endpoint"], row["model"], row["version"]) for row in listed] == [("chat", "demo", 1)]
    for name in ("chat", ident, ident[:8], ident[-6:]):
        assert shell("status", name, "-o", "json").json["id"] == ident
    assert "mill-1" in shell("status", "chat").out
    for words in (["status", "-w"], ["status", "chat", "--watch"]):
        with shell.interrupted_at_the_next_pause():
            assert "demo:1" in shell(*words).out
    assert shell("scale", "chat", "2", "-o", "json").json["desired_replicas"] == 2
    assert shell("stop", "chat", "-o", "json").json["wanted"] == "stopped"
    assert shell("start", "chat", "-o", "json").json["wanted"] == "running"
    shell("logs", "chat")
    assert "--yes" in shell("delete", "chat", want=2).err
    shell("delete", "chat", "--yes", "--wait")
    assert "millpond deploy" in shell("status").err


def test_what_is_stopped_behind_an_endpoint_is_not_meant_by_its_name(signed_in, shell, folder):
    signed_in.worker.join_agent()
    shell("upload", folder, "-m", "demo")
    old = shell("deploy", "demo:1", "-e", "chat", "--no-wait", "-o", "json").json["id"]
    new = shell("deploy", "demo:1", "-e", "chat", "--set", "max_num_seqs=4", "--no-wait", "-o", "json").json["id"]
    assert "2 go by 'chat'" in shell("scale", "chat", "0", want=2).err
    shell("stop", old)
    assert shell("scale", "chat", "0", "-o", "json").json["id"] == new
    shell("stop", new)
    assert "2 go by 'chat'" in shell("start", "chat", want=2).err


def test_why_a_replica_waits_counts_no_device_that_would_take_it(signed_in, shell, folder):
    signed_in.worker.join_agent()
    shell("upload", folder, "-m", "demo")
    nothing = {Kind.HBM_BYTES: Amount.of(0)}
    set_quota(actor=actors.system("tests"), tenant=signed_in.tenant, changes=nothing)
    shell("deploy", "demo", "-e", "chat", "--anyway", "--no-wait")
    for _try in range(100):
        told = shell("status", "chat").out
        if "Why " in told:
            break
        time.sleep(0.1)
    assert "quota on device memory" in told
    assert "more devices refuse" not in told


def test_deploying_an_alias_and_a_number(signed_in, shell, folder):
    signed_in.worker.join_agent()
    shell("upload", folder, "-m", "demo")
    shell("alias", "demo:1", "champion")
    for reference in ("demo:1", "demo@champion", "demo:champion"):
        shell("deploy", reference, "-e", "e-" + reference.split("demo")[1][1:], "--no-wait")
    assert {row["version"] for row in shell("status", "-o", "json").json} == {1}


def test_a_deployment_without_replicas_asks_for_no_place(signed_in, shell, folder):
    shell("upload", folder, "-m", "demo")
    assert shell("deploy", "demo", "--replicas", "0", "-o", "json").json["desired_replicas"] == 0


def test_what_a_replica_over_several_devices_needs_says_of_what_each_number_is():
    need = {
        "weights_bytes": 8 * GIB, "kv_floor_bytes": GIB, "kv_bytes_per_token": 2**17, "workspace_bytes": GIB // 2,
        "context_bytes": GIB // 4, "headroom_bytes": GIB, "total_bytes": 3 * GIB, "host_memory_bytes": 2 * GIB,
        "transfer_bytes": 0, "cpus": 4.0, "devices": 2, "stages": 2, "max_model_len": 4096,
    }  # fmt: skip
    assert need_lines(need) == [
        "needs 4 devices; in all weights 8.0 GiB, KV cache at least 1.0 GiB, KV cache per token 128.0 KiB",
        "each device takes 3.0 GiB, of it workspace 512.0 MiB, context 256.0 MiB",
        "each of its 2 stages takes of its node 2.0 GiB of memory and 4 CPUs",
    ]
    assert need_lines(need | {"stages": 1})[2] == "it takes of its node 2.0 GiB of memory and 4 CPUs"
    (alone,) = need_lines(need | {"devices": 1, "stages": 1})
    assert alone.startswith("needs weights 8.0 GiB, KV cache at least 1.0 GiB")
    assert "together 3.0 GiB" in alone


def test_what_fits_nowhere_is_not_deployed_unless_asked_for(signed_in, shell, folder):
    shell("upload", folder, "-m", "demo")
    said = shell("deploy", "demo", want=6)
    assert "join a node first. It would fit if: a node with a CPU or GPU joined" in " ".join(said.err.split())
    assert shell("status", "-o", "json").json == []
    shell("fit", "demo", want=6)
    shell("deploy", "demo", "--anyway", "--no-wait")
    assert shell("status", "-o", "json").json[0]["ready_replicas"] == 0


def test_fit_shows_every_device(signed_in, shell, folder):
    signed_in.worker.join_agent(name="mill-1")
    shell("upload", folder, "-m", "demo")
    assert "mill-1" in shell("fit", "demo:1").out
    assert shell("fit", "demo", "-o", "json").json["fits"]


def test_what_waits_says_why_per_device_and_what_would_help(signed_in, shell, folder):
    signed_in.worker.join_agent(name="small-1", memory_bytes=1024**2)
    shell("upload", folder, "-m", "demo")
    refused = shell("fit", "demo", want=6)
    assert "more memory" in " ".join(refused.out.split())
    shell("deploy", "demo", "--anyway", "--timeout", "2", want=6)
    said = " ".join(shell("status", "demo").out.split())
    assert "small-1" in said
    assert "It would fit if: " in said


def test_what_others_make_room_for_is_deployed_without_more_words(signed_in, shell, folder):
    shell("upload", folder, "-m", "demo")
    need = versions()[0].estimate["total_bytes"]
    signed_in.worker.join_agent(name="one-1", memory_bytes=need * 3 // 2)
    shell("deploy", "demo", "-e", "lowly", "--priority", "low", "--wait")
    said = shell("deploy", "demo", "-e", "chat", "--no-wait")
    assert "Others make room for it" in said.err


def test_waiting_ends_with_what_is_the_matter(signed_in, shell, folder):
    shell("upload", folder, "-m", "demo")
    said = shell("deploy", "demo", "--anyway", "--timeout", "0", want=6)
    assert "Not there after 0 seconds" in said.err


def test_exit_codes_and_sentences(signed_in, shell):
    for words, code, says in (
        (("deploy", "nothing"), 4, "no model"),
        (("deploy", "a:b:"), 2, "names no model"),
        (("status", "nothing"), 4, "no deployment"),
        (("versions", "nothing"), 4, "no model"),
        (("keys", "revoke", "nothing"), 4, "no API key"),
        (("nodes", "list"), 3, "platform admins"),
        (("upload",), 2, ""),
        (("frobnicate",), 2, ""),
        (("models", "--tenant", "elsewhere"), 4, "no tenant"),
    ):
        assert says in shell(*words, want=code).err


def test_settings_are_given_by_name(signed_in, shell, folder):
    signed_in.worker.join_agent()
    shell("upload", folder, "-m", "demo")
    shell("deploy", "demo", "--set", "max_num_seqs=4", "--set", "dtype=float32", "--no-wait")
    assert shell("status", "demo", "-o", "json").json["revision"]["config"]["max_num_seqs"] == 4
    assert "NAME=VALUE" in shell("deploy", "demo", "--set", "dtype", want=2).err
    assert "bogus" in shell("deploy", "demo", "--set", "bogus=1", want=1).err
