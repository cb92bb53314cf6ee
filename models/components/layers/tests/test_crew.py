"""Parts of a computation are shared by threads, each once; torch's own settings stay; a buffer is a thread's own."""

import threading

import pytest
import torch

from models.components.layers.crew import Crew, Workspace


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_every_part_is_done_once(threads):
    done = []
    crew = Crew()
    for count in (1, 2, 50):
        crew.each(done.append, range(count))
    assert sorted(done) == sorted([*range(1), *range(2), *range(50)])


def test_parts_run_side_by_side_with_one_torch_thread_each(threads):
    meet, seen = threading.Barrier(threads, timeout=10), set()

    def job(_):
        meet.wait()
        seen.add((threading.current_thread().name, torch.get_num_threads()))

    Crew().each(job, range(threads))
    assert len(seen) == threads
    assert {number for _, number in seen} == {1}


def test_threads_to_come_keep_torchs_number(threads):
    Crew().each(lambda _: torch.ones(3) + 1, range(threads))
    found = []
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert found == [threads] == [torch.get_num_threads()]


def test_an_exception_comes_back(threads):
    def job(part):
        if part == 3:
            raise ValueError("three")

    crew = Crew()
    with pytest.raises(ValueError, match="three"):
        crew.each(job, range(5))
    crew.each(lambda _: None, range(5))


def test_buffers_are_kept_up_to_a_size():
    work = Workspace(most=100)
    assert work.take("a", 10, 10).data_ptr() == work.take("a", 5, 4).data_ptr()
    assert work.take("a", 11, 10).data_ptr() != work.take("a", 11, 10).data_ptr()
    assert work.take("b", 10).shape == (10,)


def test_a_thread_has_buffers_of_its_own():
    work, found = Workspace(), []
    other = threading.Thread(target=lambda: found.append(work.take("a", 4).data_ptr()))
    mine = work.take("a", 4).data_ptr()
    other.start()
    other.join()
    assert found != [mine]
