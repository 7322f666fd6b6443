"""Events of the driver, through the real binding and the compiled stand-in for its library."""

import shutil

import pytest

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
UNKNOWN = 999


def test_events_arrive_with_device_and_instance_and_only_from_now_on(driver):
    fake = driver("a30")
    fake.event(0, 0x8, 31)  # before anybody listens
    events = fake.run("""
        import time, os
        import pynvml
        from runtime.agent.devices.nvml_events import NvmlEvents
        pynvml.nvmlInit()
        listener = NvmlEvents(pynvml, wait_ms=20, pause_seconds=0.05)
        listener.start()
        while len(listener.registered) < 4:
            time.sleep(0.01)
        with open(os.environ["FAKE_NVML"] + ".events", "a") as file:
            file.write("1 8 79 -1\\n3 8 94 2\\n2 2 0 -1\\n")
        heard = []
        while len(heard) < 3:
            heard += listener.take()
            time.sleep(0.01)
        listener.stop()
        result = [(e.code, e.device_uuid, e.xid, e.gpu_instance_id) for e in heard]
    """)
    assert events == [
        ["xid", fake.uuids[1], 79, None],
        ["xid", fake.uuids[3], 94, 2],
        ["ecc_uncorrected", fake.uuids[2], 0, None],
    ]


def test_a_gpu_that_could_not_be_opened_is_listened_to_when_it_can(driver):
    fake = driver("a30")
    fake.change(2, lost=True)
    counts = fake.run("""
        import time, os
        import pynvml
        from runtime.agent.devices.nvml_events import NvmlEvents
        pynvml.nvmlInit()
        listener = NvmlEvents(pynvml, wait_ms=20, pause_seconds=0.02, again_seconds=0.1)
        listener.start()
        def wait(count):
            until = time.monotonic() + 20
            while len(listener.registered) != count and time.monotonic() < until:
                time.sleep(0.005)
            return len(listener.registered)
        result = [wait(3)]
        path = os.environ["FAKE_NVML"]
        plain = open(path).read()
        open(path + ".new", "w").write(plain.replace("2 lost 1", "2 lost 0"))
        os.replace(path + ".new", path)
        result.append(wait(4))
        listener.stop()
    """)
    assert counts == [3, 4]


def test_a_driver_that_fails_in_the_wait_is_told_once_and_heard_again(driver):
    fake = driver("a30")
    fake.say(-1, error__nvmlEventSetWait_v2=UNKNOWN)
    codes = fake.run("""
        import time, os
        import pynvml
        from runtime.agent.devices.nvml_events import NvmlEvents
        pynvml.nvmlInit()
        listener = NvmlEvents(pynvml, wait_ms=20, pause_seconds=0.02)
        listener.start()
        heard = []
        while not heard:
            heard += listener.take()
            time.sleep(0.01)
        path = os.environ["FAKE_NVML"]
        plain = open(path).read()
        open(path, "w").write("\\n".join(l for l in plain.splitlines() if "EventSetWait" not in l) + "\\n")
        while len(listener.registered) < 4:
            time.sleep(0.01)
        while not any(e.xid for e in heard):
            with open(path + ".events", "a") as file:
                file.write("0 8 48 -1\\n")
            time.sleep(0.05)
            heard += listener.take()
        listener.stop()
        result = [(e.code, e.xid) for e in heard]
    """)
    assert [code for code, _ in codes].count("driver") == 1
    assert ["xid", 48] in codes
