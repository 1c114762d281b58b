#!/bin/sh
# A task prolog of Slurm (docs/ci.md): prints what is known to break in a batch job at the start of each of its steps.
#
#   srun --task-prolog="$PWD/task-prolog.sh" ...        or, for all users, in slurm.conf: TaskProlog=PATH
#
# MEGATRIX is the program, on a file system that the nodes share. With MEGATRIX_STOP=1 a known break cancels the job.
[ "${SLURM_PROCID:-0}" = 0 ] || exit 0
folder=$(mktemp -d) || exit 0
trap 'rm -rf "$folder"' EXIT
# Slurm keeps the script of a batch job; an interactive job has none.
scontrol write batch_script "$SLURM_JOB_ID" "$folder/job.sbatch" > /dev/null 2>&1 || exit 0
driver=$(sed -n 's/.*Kernel Module[^0-9]*\([0-9.]*\).*/driver=\1/p' /proc/driver/nvidia/version 2> /dev/null)
COLUMNS=120 "${MEGATRIX:-megatrix}" check "$folder/job.sbatch" $driver > "$folder/answer" 2>&1
[ $? = 1 ] || exit 0
sed 's/^/print /' "$folder/answer" # Slurm prints what follows "print" in the job's output
# Slurm prints the lines after the end of this script, and kills its process group: the cancellation comes later.
[ -z "$MEGATRIX_STOP" ] || setsid sh -c 'sleep 2; scancel "$1"' - "$SLURM_JOB_ID" > /dev/null 2>&1 < /dev/null &
