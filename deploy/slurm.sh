#!/bin/bash
# The course's training run on 4 nodes of 4 GPUs under SLURM, one process a GPU: sbatch slurm.sh
# Needs Python 3.11 or newer and a folder that all nodes see. FOLDER=... sbatch slurm.sh puts it elsewhere.
# Add --account and --partition where your cluster wants them.
# A lost node ends the step: the job is queued again, and the run goes on from its newest checkpoint.
#SBATCH --job-name=scaling-course
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --output=scaling-course-%j.log
#SBATCH --open-mode=append
set -euo pipefail

FOLDER=${FOLDER:-$HOME/scaling-course}
mkdir -p "$FOLDER"

# Once, on the first node, into the folder that all see.
if [[ ! -e $FOLDER/venv/ready ]]; then
  python3 -m venv "$FOLDER/venv"
  "$FOLDER/venv/bin/pip" install --quiet "jax[cuda12]" \
    "scaling-lib[jax,labs] @ git+https://github.com/scaling-course/scaling-course"
  touch "$FOLDER/venv/ready"
fi

# JAX reads the processes, their number and the first node from SLURM's environment. Since 22.05 srun forgets --cpus-per-task.
status=0
srun --kill-on-bad-exit=1 --cpus-per-task=8 "$FOLDER/venv/bin/python" -m scaling_lib.xla.hosts.worker \
  --folder "$FOLDER/checkpoints" --fsdp --steps 200 --every 20 || status=$?

if ((status != 0 && ${SLURM_RESTART_COUNT:-0} < 4)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
