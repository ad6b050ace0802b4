"""Never imports torch."""

import sys


def main():
    print("arguments", sys.argv[1:])
    print("sum", sum(1 / n**2 for n in range(1, 100_000)))


if __name__ == "__main__":
    main()
