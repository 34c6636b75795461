# Read by every job: settings, modules, Python. kimi-prov rendered it for reference-002: change it as you need.
# shellcheck shell=bash

# The folder that was rendered; logs and programs lie in it.
export KIMI_DIR=$PWD
# shellcheck source=cluster.env
. "$KIMI_DIR/cluster.env"

if [ -n "$KIMI_MODULES" ]; then
  # Modules' own code reads variables that are not set, and calls what fails.
  set +eu
  for init in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh; do
    type module >/dev/null 2>&1 || { [ -r "$init" ] && . "$init"; }
  done
  submits=$(command -v srun)
  if [ "${KIMI_PURGE:-1}" = 1 ]; then module purge; fi
  # shellcheck disable=SC2086 # one word a module
  if ! module load $KIMI_MODULES; then
    echo "KIMI_MODULES ($KIMI_MODULES) cannot be loaded on $(hostname): correct KIMI_MODULES in $KIMI_DIR/cluster.env; module avail lists them" >&2
    exit 2
  fi
  if [ -n "$submits" ] && ! command -v srun >/dev/null; then
    echo "srun is gone with the modules that were purged: name SLURM's module in KIMI_MODULES, or set KIMI_PURGE=0, in $KIMI_DIR/cluster.env" >&2
    exit 2
  fi
  set -eu
fi

if [ -n "${KIMI_CONDA:-}" ]; then
  export KIMI_PREFIX=$KIMI_PYTHON
  # Until jobs/environment.sbatch has made it, the module's own Python runs the program.
  if [ ! -x "$KIMI_PREFIX/bin/python3" ] || [ -e "$KIMI_PREFIX.unfinished" ]; then KIMI_PYTHON=python3; fi
fi
if [ -d "$KIMI_PYTHON" ]; then KIMI_PYTHON=$KIMI_PYTHON/bin/python3; fi
if ! command -v "$KIMI_PYTHON" >/dev/null; then
  echo "$KIMI_PYTHON is not on $(hostname): name a Python 3.11 in KIMI_PYTHON, or a module that has it in KIMI_MODULES, in $KIMI_DIR/cluster.env" >&2
  exit 2
fi

# Nothing goes into the home, which may be full, nor is taken from it.
export PYTHONNOUSERSITE=1
export XDG_CACHE_HOME="$KIMI_ROOT/cache" PIP_CACHE_DIR="$KIMI_ROOT/cache/pip"
# srun does not hand on what sbatch was given, since SLURM 22.05.
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi

# The program of the jobs; it has no settings beside cluster.env, plan.json and what a job says.
# shellcheck disable=SC2034 # the jobs call it
kimi=("$KIMI_PYTHON" -I "$KIMI_DIR/kimi-cluster.pyz" cluster)
