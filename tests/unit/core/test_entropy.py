from __future__ import annotations

from shoal.core.entropy import SeededEntropy, SystemEntropy


def test_a_seed_repeats() -> None:
    one, two = SeededEntropy(7), SeededEntropy(7)
    assert [one.token(), one.uniform(0, 1)] == [two.token(), two.uniform(0, 1)]
    assert SeededEntropy(8).token() != SeededEntropy(7).token()


def test_tokens_are_words_of_the_asked_length() -> None:
    for entropy in (SystemEntropy(), SeededEntropy()):
        word = entropy.token(40)
        assert len(word) == 40
        assert word.isalnum()
        assert word == word.lower()
        assert 2.0 <= entropy.uniform(2.0, 3.0) <= 3.0
    assert SystemEntropy().token() != SystemEntropy().token()
