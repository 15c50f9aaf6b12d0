"""A plain script without an event loop, and plain functions as tasks: `sync` awaits for them.

It prints:

    alpha.txt: 2 lines, 5 words
    beta.txt: 1 lines, 3 words
    3 lines in all
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from taskrunner import TaskContext, TaskRunner

runner = TaskRunner("script.db")


def lines_of(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


@runner.task
def measure(ctx: TaskContext, path: str) -> dict[str, int]:
    lines = ctx.sync(ctx.step("read", lines_of, path))  # in a thread: a plain function may block
    return {"lines": len(lines), "words": sum(len(line.split()) for line in lines)}


def main() -> None:
    with TemporaryDirectory() as folder, runner.sync as wait:  # the store is open for the length of the block
        files = [Path(folder) / "alpha.txt", Path(folder) / "beta.txt"]
        files[0].write_text("one two\nthree four five\n", encoding="utf-8")
        files[1].write_text("six seven eight\n", encoding="utf-8")
        handles = wait(runner.enqueue_many([measure.bind(str(file)) for file in files]))  # one commit, all or none
        wait(runner.drain())
        total = 0
        for file, handle in zip(files, handles, strict=True):
            found = wait(handle.result(timeout=0))  # drained: nobody would work on it while we wait
            print(f"{file.name}: {found['lines']} lines, {found['words']} words")
            total += found["lines"]
        print(total, "lines in all")


if __name__ == "__main__":
    main()
