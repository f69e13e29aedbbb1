#!/usr/bin/env python3
"""Makes the .tar.gz and the .deb of `make dist`, puts each into a bare Debian 12 and asks its celer a question.

  python3 packages_test.py build build/celer

The bare system comes from the mirrors that apt is set up with, by mmdebstrap, and is kept in the build folder as a tar
file for the next time. Where that is impossible (no root, another system, no mirror) the packages are unpacked on this
system instead, and the test says so.
"""
import atexit
import glob
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD, CELER = (os.path.abspath(argument) for argument in sys.argv[1:3])
QUESTION = "What is the capital of France? Answer in one sentence."
# Inside a chroot: its own paths, none of this user's settings but the way to the mirror.
CHROOT_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
CHROOT_ENV |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}

SCRATCH = pathlib.Path(tempfile.mkdtemp(prefix="celer-packages-"))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)


def run(*command, check=True, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"{command}: exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done


def only(pattern):
    found = glob.glob(str(pattern))
    assert len(found) == 1, (pattern, found)
    return pathlib.Path(found[0])


def model():
    """SmolLM2 if it was fetched before, else a tiny model whose answers are noise. (file, whether it knows France)"""
    cache = os.environ.get("CELER_CACHE") or os.path.expanduser("~/.cache/celer")
    real = pathlib.Path(cache) / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
    if real.exists():
        return real, True
    tiny = SCRATCH / "tiny.gguf"
    run(CELER, "synth", "smollm2-135m", "--weights", "q8_0", "--layers", 2, "--hidden", 64, "--intermediate", 96,
        "--vocab", 512, "--heads", 2, "--kv-heads", 1, "--head-dim", 32, "-o", tiny)
    return tiny, False


def bare_system():
    """(folder of a fresh bare Debian 12, None), or (None, why there is none)."""
    if os.geteuid() != 0:
        return None, "this user is not root"
    if "VERSION_CODENAME=bookworm" not in pathlib.Path("/etc/os-release").read_text():
        return None, "this system is not Debian 12"
    if not shutil.which("mmdebstrap"):
        return None, "mmdebstrap is not installed"
    sources = [path for path in [*glob.glob("/etc/apt/sources.list.d/*"), "/etc/apt/sources.list"] if os.path.isfile(path)]
    archive = pathlib.Path(BUILD) / "bare-debian-12.tar"
    if not archive.exists():
        part = archive.with_suffix(".part.tar")
        made = run("mmdebstrap", "--mode=root", "--variant=apt", "--skip=cleanup/apt/lists", "--dpkgopt=force-unsafe-io",
                   "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*",
                   "--dpkgopt=path-exclude=/usr/share/locale/*", "bookworm", part, *sources, check=False)
        if made.returncode != 0:
            part.unlink(missing_ok=True)
            return None, "mmdebstrap failed: " + made.stderr.strip()[-400:]
        part.rename(archive)
    root = SCRATCH / "root"
    root.mkdir()
    run("tar", "-xf", archive, "-C", root)
    if run(*inside(root), "/bin/ls", "/proc/self/exe", check=False).returncode != 0:
        return None, "chroot with a /proc of its own is not permitted"
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    return root, None


def inside(root):
    """The start of a command that runs in the bare system. /proc is mounted for that command alone: the loader asks it
    where the program lies."""
    return ("unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc", "chroot", root)


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dist = SCRATCH / "dist"
        run("cpack", "-B", cls.dist, cwd=BUILD)
        cls.tar = only(cls.dist / "celer-*.tar.gz")
        cls.deb = only(cls.dist / "celer_*.deb")
        cls.model, cls.knows = model()
        cls.root, cls.why_not = bare_system()
        if cls.root:
            shutil.copy(cls.model, cls.root / "srv/model.gguf")
        else:
            print(f"no bare Debian 12 here ({cls.why_not}); the packages are unpacked on this system instead", flush=True)

    def ask(self, *celer, model, env=None):
        self.assertRegex(run(*celer, "--version", env=env).stdout, r"^celer \d+\.\d+\.\d+(-dev)?\n$")
        done = run(*celer, "run", model, QUESTION, "--max-tokens", 24, env=env)
        print(f"{celer[-1]}: {done.stdout.strip()!r}", flush=True)
        if self.knows:
            self.assertIn("Paris", done.stdout)
        self.assertIn("24 new tokens" if not self.knows else "new tokens", done.stderr)

    # Runs before test_package_installs, which brings the libraries that the archive must have with it.
    def test_archive_has_all_its_libraries(self):
        if self.root:
            run("tar", "-xzf", self.tar, "-C", self.root / "opt")
            celer = only(self.root / "opt/celer-*/bin/celer")
            self.ask(*inside(self.root), "/" + str(celer.relative_to(self.root)), model="/srv/model.gguf", env=CHROOT_ENV)
        else:
            run("tar", "-xzf", self.tar, "-C", SCRATCH)
            celer = only(SCRATCH / "celer-*/bin/celer")
            self.ask(celer, model=self.model)
        bundled = {path.name for path in celer.parents[1].glob("lib/**/*.so.*")}
        self.assertFalse([name for name in bundled if name.startswith(("libc.", "libm.", "libstdc++", "ld-linux"))], bundled)
        if not self.root:
            # Whatever is not bundled must be what every Debian has.
            needed = run("ldd", celer).stdout.split("\n")
            outside = {line.split()[0] for line in needed if "=> /" in line and str(SCRATCH) not in line}
            self.assertEqual(outside - {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6"}, set())

    def test_package_installs(self):
        if self.root:
            shutil.copy(self.deb, self.root / "srv/celer.deb")
            chroot = inside(self.root)
            run(*chroot, "apt-get", "install", "-y", "--no-install-recommends", "/srv/celer.deb", env=CHROOT_ENV)
            self.ask(*chroot, "/usr/bin/celer", model="/srv/model.gguf", env=CHROOT_ENV)
            run(*chroot, "apt-get", "purge", "-y", "celer", env=CHROOT_ENV)
            self.assertFalse((self.root / "usr/bin/celer").exists())
        else:
            run("dpkg-deb", "-x", self.deb, SCRATCH / "deb")
            if shutil.which("apt-get"):
                run("apt-get", "-s", "install", "--no-install-recommends", self.deb)
            self.ask(SCRATCH / "deb/usr/bin/celer", model=self.model)

    def test_package_needs_only_libraries_of_debian(self):
        depends = run("dpkg-deb", "-f", self.deb, "Depends").stdout
        print("Depends:", depends.strip(), flush=True)
        # A compiler that is not the system's own has its C++ library beside it, and no package names that.
        for package in ("libc6", "libstdc++6") if self.root else ("libc6",):
            self.assertIn(package, depends)
        for word in ("cuda", "nvidia"):
            self.assertNotIn(word, depends)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
