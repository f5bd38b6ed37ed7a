#!/usr/bin/env bash
# Starts and stops a single-node Slurm for tests: tools/slurm.sh start, tools/slurm.sh stop.
#
# Needs root, and Debian's slurm-wlm and munge. It uses a separate folder (GHOSTLAB_SLURM, by default target/slurm) and
# separate ports, so that it does not affect an existing Slurm. Without accounting and cgroups, it also runs in a
# container. Clients find it through SLURM_CONF, which `start` prints.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${GHOSTLAB_SLURM:-target/slurm}")
conf=$folder/slurm.conf
export SLURM_CONF=$conf
port=${GHOSTLAB_SLURM_PORT:-26817}
host=$(hostname -s)

alive() { [ -f "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }

# Terminates the process in a pid file, and waits for its end.
end() {
    alive "$1" || return 0
    kill "$(cat "$1")" 2>/dev/null || true
    for _ in $(seq 100); do alive "$1" || return 0; sleep 0.1; done
    kill -9 "$(cat "$1")" 2>/dev/null || true
}

stop() {
    if alive "$folder/slurmctld.pid"; then timeout 10 scancel --user="$(id -un)" 2>/dev/null || true; fi
    end "$folder/slurmd.pid"
    end "$folder/slurmctld.pid"
    end "$folder/munged.pid"
}

start() {
    for program in munged slurmctld slurmd sbatch; do
        PATH=$PATH:/usr/sbin command -v $program >/dev/null || { echo "$program is not installed (apt-get install slurm-wlm munge)" >&2; exit 3; }
    done
    stop
    rm -rf "$folder"
    mkdir -p "$folder"/{state,spool,munge}
    chmod 755 "$folder" "$folder/munge"
    head -c 1024 /dev/urandom > "$folder/munge.key"
    chmod 400 "$folder/munge.key"
    # Declare more CPUs than exist, because the workers of the tests mostly sleep, and several arrays run concurrently.
    # cred_expire is the delay before a requeued job starts. KillWait is the delay between SIGTERM and SIGKILL.
    cat > "$conf" <<CONF
ClusterName=ghostlab
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,batch_sched_delay=0,bf_interval=2
ReturnToService=2
KillWait=5
CompleteWait=0
MinJobAge=300
OverTimeLimit=0
MaxArraySize=1001
NodeName=$host NodeAddr=127.0.0.1 CPUs=16 RealMemory=1000000 State=UNKNOWN
PartitionName=test Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
    # Use a separate socket, because the system's munged may run as another user.
    munged --force --socket="$folder/munge/socket" --key-file="$folder/munge.key" --pid-file="$folder/munged.pid" \
        --seed-file="$folder/munge.seed" --log-file="$folder/munge.log"
    slurmctld -c
    slurmd -c
    for _ in $(seq 100); do
        state=$(timeout 5 sinfo --noheader -o %T 2>/dev/null || true)
        if [ "$state" = idle ]; then
            echo "export SLURM_CONF=$conf"
            return 0
        fi
        sleep 0.2
    done
    echo "the node did not become available (${state:-no answer}); see the logs in $folder" >&2
    exit 3
}

PATH=$PATH:/usr/sbin:/sbin
case "${1:-}" in
    start) start ;;
    stop) stop ;;
    *) echo "usage: tools/slurm.sh start|stop" >&2; exit 2 ;;
esac
