#!/usr/bin/env python3
"""Every sentence the manifest library can say is matched by some test.

usage: check_diagnostics.py SOURCE_DIR
Takes the format string of every problem(…) in libs/manifest/src and looks for a text that it could
have made in tests/manifest: in rules/*.cases, or in a string of a test.
"""
import pathlib
import re
import sys

CALL = re.compile(r'\b(?:problem|fmt::format)\s*\(')
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def argument_text(source, start):
    """The text between the parenthesis at `start` and its partner."""
    depth, at, quoted = 0, start, False
    while True:
        c = source[at]
        if quoted:
            at += c == '\\'
            quoted = c != '"'
        elif c == '"':
            quoted = True
        elif c == '(':
            depth += 1
        elif c == ')':
            depth -= 1
            if depth == 0:
                return source[start + 1:at]
        at += 1


def split_arguments(text):
    parts, depth, quoted, last, at = [], 0, False, 0, 0
    while at < len(text):
        c = text[at]
        if quoted:
            at += c == '\\'
            quoted = c != '"'
        elif c == '"':
            quoted = True
        elif c in '({[':
            depth += 1
        elif c in ')}]':
            depth -= 1
        elif c == ',' and depth == 0:
            parts.append(text[last:at])
            last = at + 1
        at += 1
    return parts + [text[last:]]


def sentences(path):
    """(line, format string) of every problem a source reports."""
    source = path.read_text()
    for match in re.finditer(r'\bproblem\s*\(', source):
        text = argument_text(source, match.end() - 1)
        if 'fmt::format_string' in text:
            continue
        for part in split_arguments(text)[:3]:
            part = part.strip()
            if re.fullmatch(r'(?:"(?:[^"\\]|\\.)*"\s*)+', part) and part != '""':
                words = ''.join(STRING.findall(part))
                if not words.startswith('/'):
                    yield source.count('\n', 0, match.start()) + 1, words
                    break
    for match in re.finditer(r'diagnostics\w*\.push_back\(', source):
        text = argument_text(source, match.end() - 1)
        found = [w for w in STRING.findall(text) if ' ' in w and not w.startswith('/')]
        if found:
            yield source.count('\n', 0, match.start()) + 1, ''.join(found)
    for match in re.finditer(r'^\s*list\(scope, "[^"]*", .*?"([^"]*)"\);', source, re.M):
        yield source.count('\n', 0, match.start()) + 1, match.group(1)


def pattern(words):
    words = words.encode().decode('unicode_escape').encode('latin-1').decode('utf-8')
    words = words.replace('{{', '\0').replace('}}', '\1')
    parts = [re.escape(p.replace('\0', '{').replace('\1', '}')) for p in re.split(r'\{[^{}]*\}', words)]
    return re.compile('.*?'.join(parts))


def main():
    root = pathlib.Path(sys.argv[1])
    tests = root / 'tests' / 'manifest'
    said = []
    for path in sorted(tests.rglob('*.cases')):
        said += [line[2:] for line in path.read_text().splitlines() if line.startswith('= ')]
    for path in sorted(tests.rglob('*_test.cc')):
        text = re.sub(r'"\s*\n\s*"', '', path.read_text())
        said += STRING.findall(text)
    missing = 0
    for path in sorted((root / 'libs' / 'manifest' / 'src').glob('*.cc')):
        for line, words in sentences(path):
            if not any(pattern(words).search(text) for text in said):
                print(f'{path.relative_to(root)}:{line}: no test expects "{words}"')
                missing += 1
    if missing:
        print(f'{missing} diagnostics without a test: add a case to tests/manifest/rules')
    return 1 if missing else 0


if __name__ == '__main__':
    sys.exit(main())
