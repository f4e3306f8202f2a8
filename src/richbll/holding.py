"""What an estimator holds: a fitted posterior, its scales, and what follows from them."""

from dataclasses import replace

from torch import Tensor

from richbll.checks import non_negative, one_of, positive_per_output
from richbll.core.projection import gcv_ridge
from richbll.errors import NotFittedError, OptionError
from richbll.fitted import Fitted, UncertaintyHead
from richbll.likelihoods.conformal import Calibration


class PosteriorHolder:
    """The state of `RichBLL` and the ways to look at it and to change a scale. Nothing else holds state."""

    def __init__(self) -> None:
        self._fitted: Fitted | None = None
        self._head: tuple[Fitted, UncertaintyHead] | None = None  # made from the fitted value when first needed
        self._calibration: Calibration | None = None  # belongs to these scales and this data

    def _become(self, fitted: Fitted) -> None:
        self._calibration, self._head, self._fitted = None, None, fitted  # in this order, for other threads

    @property
    def _state(self) -> Fitted:
        if self._fitted is None:
            raise NotFittedError("This RichBLL has not seen any data: call fit(loader) first.")
        return self._fitted

    @property
    def noise_variance(self) -> Tensor:
        """σ² (c,). Assigning a number, or one per output, takes effect at once; the data is not read again.

        Where the noise is a function of x, this is a factor on it, 1 at first.

        Examples:
            >>> import richbll
            >>> uq = richbll.RichBLL(nn.Linear(2, 1), noise_variance=0.5).fit(torch.randn(64, 2))
            >>> uq.noise_variance = 0.25
            >>> uq.noise_variance
            tensor([0.2500], dtype=torch.float64)
        """
        return self._state.noise_variance.clone()

    @noise_variance.setter
    def noise_variance(self, value: float | Tensor) -> None:
        given = positive_per_output("noise_variance", value, len(self._state.posterior.W))
        self._become(replace(self._state, noise_variance=given.to(self._state.posterior.W.device)))

    @property
    def prior_variance(self) -> Tensor:
        """τ² (c,). Assigning a number, or one per output, takes effect at once; the data is not read again.

        Examples:
            >>> import richbll
            >>> uq = richbll.RichBLL(nn.Linear(2, 1), noise_variance=0.5).fit(torch.randn(64, 2))
            >>> uq.prior_variance = 10
            >>> uq.prior_variance
            tensor([10.], dtype=torch.float64)
        """
        return self._state.prior_variance.clone()

    @prior_variance.setter
    def prior_variance(self, value: float | Tensor) -> None:
        given = positive_per_output("prior_variance", value, len(self._state.posterior.W))
        self._become(replace(self._state, prior_variance=given.to(self._state.posterior.W.device)))

    @property
    def ridge(self) -> float:
        """λ in use. Assigning a number, or "gcv" for the best by cross-validation, costs O(r³); no data is read again.

        Examples:
            >>> import richbll
            >>> uq = richbll.RichBLL(nn.Linear(2, 1), noise_variance=0.5).fit(torch.randn(64, 2))
            >>> uq.ridge = 1.0
            >>> uq.ridge
            1.0
        """
        return self._state.ridge

    @ridge.setter
    def ridge(self, value: float | str) -> None:
        if isinstance(value, str):
            one_of("ridge", value, ("gcv",))
            if len(self._state.projections) > 1:
                raise OptionError('ridge="gcv" chooses one ridge for one transform, but there is one for each class.')
            value = gcv_ridge(self._state.projections[0], self._state.moments.num_rows)
        self._become(self._state.with_ridge(non_negative("ridge", value)))

    @property
    def num_data(self) -> int:
        """N: how many examples the posterior stands for.

        Examples:
            >>> import richbll
            >>> richbll.RichBLL(nn.Linear(2, 1), noise_variance=0.5).fit(torch.randn(64, 2)).num_data
            64
        """
        return self._state.moments.num_data + self._state.num_added

    @property
    def subsample_size(self) -> int:
        """k: how many rows were read for it.

        Examples:
            >>> import richbll
            >>> uq = richbll.RichBLL(nn.Linear(2, 1), noise_variance=0.5, subsample=16).fit(torch.randn(64, 2))
            >>> uq.subsample_size
            16
        """
        return self._state.moments.num_rows
