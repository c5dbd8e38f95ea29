from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace


class ClassesOnly(ArgumentParser):
    """A parser of settings that calls classes of the declared types, and no function that the settings name."""

    def validate(self, namespace: Namespace, *others: Any, **kwargs: Any) -> None:
        """Check settings against the types of the options; a function is only possible as the default of its option.

        Raises:
            TypeError: If a value is not possible.
        """
        super().validate(namespace, *others, **kwargs)
        for key, value in namespace.items():
            if callable(value) and not isinstance(value, type) and value != self.get_defaults().get(key):
                raise TypeError(f"{key}: the function {value.__module__}.{value.__qualname__} is not possible")

    def add_function_arguments(self, function: Any, *_: Any, **__: Any) -> NoReturn:
        """Refuse what would be called though it is no class; the parser asks for the arguments of all it calls.

        Raises:
            ImportError: Always.
        """
        raise ImportError(f"{function.__module__}.{function.__qualname__} is no class")
