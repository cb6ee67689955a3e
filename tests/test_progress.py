"""Progress bars: lines of text where there is no terminal."""

from __future__ import annotations

from mirrordescent._internal.progress import ProgressBar, bar_labels


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_lines_have_the_label_the_count_and_the_description(capsys):
    with ProgressBar("solving", 10, True) as bar:
        bar.update(3, "mean value 0.5")
    assert lines(capsys) == ["solving 3/10, mean value 0.5"]


def test_bars_in_the_words_of_an_application_have_no_description_of_a_solve(capsys):
    with bar_labels(solving="photographs: iteration"), ProgressBar("solving", 10, True) as bar:
        bar.update(3, "mean value 0.5")
    with ProgressBar("solving", 10, True) as bar:
        bar.update(4, "mean value 0.5")
    assert lines(capsys) == ["photographs: iteration 3/10", "solving 4/10, mean value 0.5"]
