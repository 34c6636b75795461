import pytest

from kimi_prov.contract import cpu_lists, numbers


@pytest.mark.parametrize(
    ("text", "whole", "leading", "decimal"),
    [
        ("128", 128, 128, 128.0),
        ("128 GB", None, 128, 128.0),
        ("26.562 GB/s", None, 26, 26.562),
        ("26.5626.562", None, 26, None),
        ("²", None, None, None),
        ("٣", None, None, None),
        ("9" * 5000, None, None, None),
        ("1e999", None, 1, 1.0),
        ("nan", None, None, None),
        ("", None, None, None),
        (None, None, None, None),
    ],
)
def test_what_is_plainly_a_number_is_one(text, whole, leading, decimal):
    assert numbers.parse_int(text) == whole
    assert numbers.parse_leading_int(text) == leading
    assert numbers.parse_leading_decimal(text) == decimal


def test_lists_of_cpus_hold_each_once_and_end():
    assert cpu_lists.parse_list("8,0-3,2-5,x,-,7-6") == [0, 1, 2, 3, 4, 5, 8]
    assert cpu_lists.parse_list("0-999999999999") == []
    assert len(cpu_lists.parse_list(",".join(f"{n}-8191" for n in range(8192)))) == 8192
