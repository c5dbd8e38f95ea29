from reproduction.claims import Claim, show


def test_a_claim_that_fails_stands_out(capsys):
    show([Claim("1 + 1", "2", "2", True), Claim("2 + 2", "5", "4", False)])
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert ["1", "+", "1", "2", "2", "yes"] in rows
    assert ["2", "+", "2", "5", "4", "NO"] in rows
