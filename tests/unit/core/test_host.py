"""The boot id."""

from shoal.core.host import BOOT_ID, boot_id


def test_it_is_the_same_until_the_next_boot(tmp_path):
    assert len(boot_id()) == 36
    assert boot_id() == boot_id()
    (tmp_path / BOOT_ID).parent.mkdir(parents=True)
    (tmp_path / BOOT_ID).write_text("another\n")
    assert boot_id(tmp_path) == "another"


def test_a_kernel_that_does_not_tell_gives_nothing(tmp_path):
    assert boot_id(tmp_path) == ""
