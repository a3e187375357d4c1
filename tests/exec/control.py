#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: control.py TEST…    runs the tests with faulty kernels ($B200_KERNELS) and succeeds when each TEST fails."""
import re
import subprocess
import sys

done = subprocess.run([sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rf", "--tb=no", "-k", " or ".join(sys.argv[1:]), "test_vectors.py"],
                      stdout=subprocess.PIPE, text=True)
failed = set(re.findall(r"^FAILED [^:]*::(\w+)", done.stdout, re.M))
unnoticed = [name for name in sys.argv[1:] if name not in failed]
print(f"{len(sys.argv) - 1 - len(unnoticed)} tests noticed the fault: {' '.join(sorted(failed))}")
if done.returncode != 1 or unnoticed:
    print(done.stdout)
    sys.exit(f"control: not noticed by {' '.join(unnoticed) or 'anyone'} (pytest's status {done.returncode})")
