"""The wheel behind Gymnasium's interface, by Gymnasium's own check and beside the wheel itself."""

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install 'richbll[gym]'")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from richbll_bench.bandits.gym import WheelEnv  # noqa: E402
from richbll_bench.bandits.wheel import SAFE_ARM  # noqa: E402
from richbll_bench.errors import BanditError  # noqa: E402


@pytest.mark.filterwarnings("error")
def test_gymnasium_finds_nothing_wrong() -> None:
    check_env(WheelEnv(0.5, horizon=20), skip_render_check=True)


def test_steps_are_the_wheel_s() -> None:
    env = WheelEnv(0.7, horizon=400)
    first, _ = env.reset(seed=3)
    contexts, regrets, truncated = [first], [], False
    while not truncated:
        before = contexts[-1]
        after, reward, terminated, truncated, info = env.step(SAFE_ARM)
        assert not terminated
        assert reward == pytest.approx(1.2, abs=0.06)
        assert info["regret"] == pytest.approx(48.8 if np.linalg.norm(before) > 0.7 else 0.0)
        regrets.append(info["regret"])
        contexts.append(after)
    assert len(regrets) == 400
    assert np.mean(np.array(regrets) > 0) == pytest.approx(1 - 0.49, abs=0.1)
    again, _ = env.reset(seed=3)
    np.testing.assert_array_equal(again, first)
    other, _ = env.reset()
    assert not np.array_equal(other, first)


def test_a_wheel_that_cannot_be() -> None:
    with pytest.raises(BanditError, match="between 0 and 1"):
        WheelEnv(1.5)
